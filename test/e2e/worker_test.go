package e2e

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// TestAuthorizationsExpireOnceThoughAWorkerDies: one of two workers dies, or freezes, in the middle of a sweep, at the COMMIT of its
// second batch. Each authorization of a second expires once, with one event.
func TestAuthorizationsExpireOnceThoughAWorkerDies(t *testing.T) {
	t.Parallel()
	const authorizations = 500
	for name, c := range map[string]struct {
		signal syscall.Signal
		fate   pgproxy.Fate
	}{
		"killed before its COMMIT": {syscall.SIGKILL, pgproxy.LoseRequest},
		"killed after its COMMIT":  {syscall.SIGKILL, pgproxy.LoseReply},
		"frozen":                   {syscall.SIGSTOP, pgproxy.Stall}, // it keeps payments and accounts locked until Postgres ends it
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain := newChain(t)
			chain.authorize(authorizations, 2*time.Second)
			chain.number(0, `SELECT count(*) FROM payments WHERE authorization_expires_at > clock_timestamp()`)

			one := make(chan *process.Process, 1)
			var commits atomic.Int64
			struck := make(chan struct{})
			proxy := pgproxy.Start(t, chain.db.URL, func(int, int) pgproxy.Fate {
				if commits.Add(1) != 2 {
					return pgproxy.Pass
				}
				defer close(struck)
				_ = syscall.Kill((<-one).Pid(), c.signal) // it runs: it just sent something
				return c.fate
			})
			first := chain.start("worker", "WORKER_PARTS=expiry", "DATABASE_URL="+proxy.URL(chain.url("worker")))
			one <- first
			select {
			case <-struck:
			case <-time.After(30 * time.Second):
				t.Fatal("the first worker did not come to its second batch")
			}
			second := chain.start("worker", "WORKER_PARTS=expiry", "DATABASE_URL="+chain.url("worker"))

			chain.number(authorizations, `SELECT count(*) FROM payments WHERE status = 'expired' AND version = 2`)
			if c.signal == syscall.SIGSTOP {
				signal(t, first, syscall.SIGCONT)
				proxy.Release()
				second.Stop()
				chain.authorize(authorizations, 5*time.Second) // it goes on by itself
				chain.number(2*authorizations, `SELECT count(*) FROM payments WHERE status = 'expired' AND version = 2`)
			}
			chain.number(0, `SELECT sum(held_minor)::int FROM accounts`)

			// Of each payment: authorized, then expired, once. Seeding made two payments.
			total := authorizations
			if c.signal == syscall.SIGSTOP {
				total *= 2
			}
			versions, seen := map[string]string{}, map[string]bool{}
			for _, r := range chain.topic("payments", 2+2*total) {
				id := header(r, "ce_id")
				if seen[id] {
					continue // the relay has sent it again
				}
				seen[id] = true
				if kind := header(r, "ce_type"); kind != "payment.completed" {
					versions[string(r.Key)] += kind + " " + header(r, "ce_sequence") + ", "
				}
			}
			if len(versions) != total {
				t.Errorf("%d of %d payments are on the topic", len(versions), total)
			}
			for id, got := range versions {
				if want := "payment.authorized 1, payment.expired 2, "; got != want {
					t.Errorf("events of %s: %s", id, got)
				}
			}
		})
	}
}

// authorize holds money of the first account for the second, n times.
func (c *chain) authorize(n int, length time.Duration) {
	c.t.Helper()
	p := &payments.Processor{DB: c.db.Pool(c.t, "api_write"), Retention: idempotency.DefaultRetention,
		Render: func(payments.Outcome) idempotency.Response { return idempotency.Response{Status: 201} }}
	var tenant uuid.UUID
	if err := c.owner.QueryRow(c.t.Context(), `SELECT tenant_id FROM accounts WHERE id = $1`, c.Accounts[0].ID).Scan(&tenant); err != nil {
		c.t.Fatal(err)
	}
	rs := make([]payments.Request, n)
	for i := range rs {
		key := "hold-" + uuid.NewString()
		rs[i] = payments.Request{
			Request: idempotency.Request{TenantID: tenant, ClientID: tenant, Key: key, Fingerprint: idempotency.NewFingerprint(tenant, "POST", "/x", nil, []byte(strconv.Itoa(i)))},
			Method:  "POST", Route: "/x", Command: payments.CreatePayment{
				AmountMinor: 10, Currency: "USD", SourceAccount: c.Accounts[0].ID, DestinationAccount: c.Accounts[1].ID, Authorization: length,
			},
		}
	}
	for len(rs) > 0 {
		batch := rs[:min(100, len(rs))]
		as, err := p.Process(c.t.Context(), batch)
		for i := range as {
			if as[i].State != idempotency.New && err == nil {
				err = fmt.Errorf("answer %+v", as[i])
			}
		}
		if err != nil {
			c.t.Fatal(err)
		}
		rs = rs[len(batch):]
	}
}

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

func TestPgBouncerPaymentReachesStatementsOnce(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	b := newPgBouncer(t, db, db.URL)
	c := newChainVia(t, db, b.URL)

	const keys, duplicates = 25, 8
	var wg sync.WaitGroup
	var mu sync.RWMutex // persist wants one; the API stays
	var bodies [keys][duplicates]string
	for k := range keys {
		for d := range duplicates {
			wg.Go(func() {
				var err error
				if bodies[k][d], err = c.persist(t.Context(), &mu, fmt.Sprintf("k-%d", k)); err != nil {
					t.Errorf("key %d: %v", k, err)
				}
			})
		}
	}
	wg.Wait()
	for k := range keys {
		for d := range duplicates {
			if bodies[k][d] != bodies[k][0] {
				t.Errorf("key %d was answered with\n%s\nand with\n%s", k, bodies[k][0], bodies[k][d])
			}
		}
		repeat, err := c.pay(t.Context(), fmt.Sprintf("k-%d", k), 100)
		if err != nil || repeat.status != http.StatusCreated || repeat.body != bodies[k][0] || repeat.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("repeat of key %d: %v %+v", k, err, repeat)
		}
	}
	if other, err := c.pay(t.Context(), "k-0", 9900); err != nil || other.status != http.StatusUnprocessableEntity {
		t.Errorf("same key, other amount: %v %+v", err, other)
	}
	c.number(keys, `SELECT count(*) FROM payments WHERE idempotency_key LIKE 'k-%'`)
	if line := fmt.Sprintf(`idempotency_requests_total{outcome="new"} %d`, keys); !strings.Contains(get(t, "http://"+c.api.Admin+"/metrics"), line+"\n") {
		t.Errorf("metrics lack %s", line)
	}

	for range 40 { // each in a transaction that is told its tenant
		wg.Go(func() {
			testenv.Eventually(t, time.Minute, func() error { // 429: too many reads at once
				a, err := c.send(t.Context(), "GET", "/api/v1/accounts/"+c.Accounts[0].ID.String(), "", "")
				if err == nil && (a.status != http.StatusOK || !strings.Contains(a.body, `"balance_minor":997500`)) {
					err = fmt.Errorf("read account: %+v", a)
				}
				return err
			})
		})
	}
	wg.Wait()
	c.topic("payments", keys+2) // two came from seeding
	c.statementsMatchTheLedger()
	for _, role := range []string{"api_write", "api_read", "relay", "consumer"} {
		b.sessionsAreClean(role)
	}
}

func TestPgBouncerUnansweredCommitPaysOnce(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	var lost atomic.Int64
	proxy := pgproxy.Start(t, db.URL, func(_, commit int) pgproxy.Fate {
		switch {
		case commit != 2: // a lost one is its connection's last
			return pgproxy.Pass
		case lost.Add(1)%4 == 0:
			return pgproxy.LoseRequest
		}
		return pgproxy.LoseReply
	})
	c := newChainVia(t, db, newPgBouncer(t, db, proxy.URL(db.URL)).URL)
	const clients, each = 4, 20
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			for i := range each {
				a, err := c.pay(t.Context(), fmt.Sprintf("k-%d-%d", n, i), 100)
				replayed := []string{"false"}
				for err == nil && (a.status == http.StatusServiceUnavailable || a.status == http.StatusConflict) && t.Context().Err() == nil {
					replayed = []string{"false", "true"} // the machine paused: it may be paid
					a, err = c.pay(t.Context(), fmt.Sprintf("k-%d-%d", n, i), 100)
				}
				if err != nil || a.status != http.StatusCreated || !slices.Contains(replayed, a.header.Get("Idempotent-Replayed")) {
					t.Errorf("payment %d of client %d: %v %+v", i, n, err, a)
				}
			}
		})
	}
	wg.Wait()
	if lost.Load() < 10 {
		t.Errorf("only %d COMMITs were lost", lost.Load())
	}
	c.number(clients*each, `SELECT count(*) FROM payments WHERE idempotency_key LIKE 'k-%'`)
	c.statementsMatchTheLedger()
}

func TestPgBouncerClaimEndsWithTransaction(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	pool := newPgBouncer(t, db, db.URL).Pool("api_write", 4)
	ctx := t.Context()
	request := idempotency.Request{
		TenantID: uuid.Max, ClientID: uuid.Max, Key: "k", RequestID: "r",
		Fingerprint: idempotency.NewFingerprint(uuid.Max, "POST", "/", nil, nil),
	}
	claim := func(tx pgx.Tx) (session uint32, state idempotency.State) {
		t.Helper()
		if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&session); err != nil {
			t.Fatal(err)
		}
		answers, err := idempotency.Claim(ctx, tx, []idempotency.Request{request}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return session, answers[0].State
	}
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // most are rolled back before
		return tx
	}
	first, second := begin(), begin()
	one, state := claim(first)
	if state != idempotency.New {
		t.Fatalf("the first claim: %s", state)
	}
	two, state := claim(second)
	if one == two || state != idempotency.InProgress {
		t.Fatalf("a claim of another session's key: %s", state)
	}
	if err := first.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if _, state := claim(second); state != idempotency.New {
		t.Errorf("a claim of a key whose holder has gone: %s", state)
	}
}

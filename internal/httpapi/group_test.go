package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// grouped is an api whose requests are committed together.
type grouped struct {
	*api
	group atomic.Pointer[groupcommit.Group[payments.Request, idempotency.Answer]]
	gate  sync.RWMutex // while a test holds it, every commit waits at its beginning
	begun atomic.Int64 // commits that came to the gate
}

func startGrouped(t *testing.T, o groupcommit.Options, change func(*httpapi.Options)) *grouped {
	t.Helper()
	g := &grouped{}
	g.api = start(t, func(o *httpapi.Options) {
		o.Submit = func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
			return g.group.Load().Do(ctx, r)
		}
		if change != nil {
			change(o)
		}
	})
	g.over(t, g.write, o)
	return g
}

// over commits with a pool from now on.
func (g *grouped) over(t *testing.T, pool *pgxpool.Pool, o groupcommit.Options) {
	t.Helper()
	processor := &payments.Processor{DB: pool, Retention: idempotency.DefaultRetention, Render: httpapi.Render}
	group := groupcommit.New(func(ctx context.Context, rs []payments.Request) ([]idempotency.Answer, error) {
		g.begun.Add(1)
		g.gate.RLock()
		defer g.gate.RUnlock()
		return processor.Process(ctx, rs)
	}, o)
	g.group.Store(group)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- group.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// shut shuts the gate until it is opened, or until the test has failed.
func (g *grouped) shut(t *testing.T) (open func()) {
	t.Helper()
	g.gate.Lock()
	open = sync.OnceFunc(g.gate.Unlock)
	t.Cleanup(open)
	return open
}

// inOneBatch sends requests so that they are committed together, in this order. The group has one
// committer.
func (g *grouped) inOneBatch(t *testing.T, c caller, requests ...func() answer) []answer {
	t.Helper()
	open := g.shut(t)
	before := g.begun.Load()
	first := later(func() answer { return c.post(t, "/api/v1/accounts", `{"currency":"USD"}`) })
	testenv.Eventually(t, 10*time.Second, equal(before+1, g.begun.Load))
	var pending []<-chan answer
	for i, r := range requests {
		pending = append(pending, later(r))
		testenv.Eventually(t, 10*time.Second, equal(i+1, g.group.Load().Waiting))
	}
	open()
	(<-first).wantStatus(t, http.StatusCreated)
	var answers []answer
	for _, p := range pending {
		answers = append(answers, <-p)
	}
	if n := g.begun.Load(); n != before+2 {
		t.Errorf("%d batches, want two", n-before)
	}
	return answers
}

func later(do func() answer) <-chan answer {
	c := make(chan answer, 1)
	go func() { c <- do() }()
	return c
}

// soon is the next answer. One that waits for the gate never comes.
func soon(t *testing.T, answers <-chan answer) answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(20 * time.Second):
		t.Fatal("no answer within 20 s")
		return answer{}
	}
}

func equal[N comparable](want N, get func() N) func() error {
	return func() error {
		if got := get(); got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	}
}

func (a answer) wantStatus(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Errorf("got %d %s, want %d", a.status, a.body, status)
	}
}

// wantBalanced checks the books.
func (a *api) wantBalanced(t *testing.T) {
	t.Helper()
	for law, sql := range map[string]string{
		"a balance is the sum of its entries":  `SELECT count(*) FROM accounts a WHERE balance_minor <> (SELECT coalesce(sum(amount_minor), 0) FROM ledger_entries WHERE account_id = a.id)`,
		"the entries of a payment sum to zero": `SELECT count(*) FROM (SELECT FROM ledger_entries GROUP BY payment_id HAVING sum(amount_minor) <> 0) x`,
		"a completed payment has two entries":  `SELECT count(*) FROM payments p WHERE (status = 'completed') <> ((SELECT count(*) FROM ledger_entries WHERE payment_id = p.id) = 2)`,
		"a key pays once":                      `SELECT count(*) - count(DISTINCT (tenant_id, client_id, idempotency_key)) FROM payments`,
	} {
		if n := a.number(t, sql); n != 0 {
			t.Errorf("broken %d times: %s", n, law)
		}
	}
}

func (a *api) number(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	if err := a.owner.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestBatchExecutesSameKeyOnce(t *testing.T) {
	t.Parallel()
	g := startGrouped(t, groupcommit.Options{Committers: 1}, nil)
	c := g.caller
	from, to := c.funded(t, 100), c.account(t)
	pay := func() answer {
		return c.post(t, "/api/v1/payments", order(from, to, 60), "Idempotency-Key", "twice")
	}
	both := g.inOneBatch(t, c, pay, pay)
	both[0].wantStatus(t, http.StatusCreated)
	both[1].is(t, http.StatusConflict, "request-in-progress")
	if both[1].header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	again := pay()
	if again.body != both[0].body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the repeat got %+v, the first %s", again, both[0].body)
	}
	if n := g.number(t, `SELECT count(*) FROM payments WHERE idempotency_key = 'twice'`); n != 1 {
		t.Errorf("paid %d times", n)
	}
	g.wantBalanced(t)
}

func TestBatchDeclinesSecondPaymentWithoutFunds(t *testing.T) {
	t.Parallel()
	g := startGrouped(t, groupcommit.Options{Committers: 1}, nil)
	c := g.caller
	from, to := c.funded(t, 100), c.account(t)
	pay := func() answer { return c.post(t, "/api/v1/payments", order(from, to, 60)) }
	both := g.inOneBatch(t, c, pay, pay)
	both[0].wantStatus(t, http.StatusCreated)
	both[1].is(t, http.StatusPaymentRequired, "insufficient-funds")
	g.wantBalanced(t)
}

func TestHotAccountNeverDeadlocksOrLosesMoney(t *testing.T) {
	t.Parallel()
	const callers, each = 32, 8
	g := startGrouped(t, groupcommit.Options{Committers: 4, MaxBatch: 10}, nil)
	c := g.caller
	hot := c.funded(t, callers*each)
	var others []string
	for range callers {
		others = append(others, c.account(t))
	}
	var all sync.WaitGroup
	for n, other := range others {
		all.Go(func() {
			for i := range each {
				from, to := hot, other
				if i%2 == 1 {
					from, to = other, hot
				}
				if n%2 == 1 && i == 0 { // half of them are one ahead, so that the directions meet
					c.post(t, "/api/v1/payments", order(hot, other, 1)).wantStatus(t, http.StatusCreated)
				}
				c.post(t, "/api/v1/payments", order(from, to, 1)).wantStatus(t, http.StatusCreated)
			}
		})
	}
	all.Wait()
	if n := g.number(t, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	if n := g.number(t, `SELECT balance_minor FROM accounts WHERE id = $1`, hot); n != callers*each-callers/2 {
		t.Errorf("the hot account has %d", n)
	}
	g.wantBalanced(t)
}

// The flooder has more requests than its share; nothing is committed while the gate is shut, so all
// are there at once.
func TestFloodBeyondShareIsRefusedForItsTenantOnly(t *testing.T) {
	t.Parallel()
	const share, flood = 5, 70
	g := startGrouped(t, groupcommit.Options{Committers: 1, Queue: 20}, func(o *httpapi.Options) { o.TenantMax = share })
	flooder, neighbour := g.caller, g.newTenant(t)
	finished := flooder.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", "finished")
	finished.wantStatus(t, http.StatusCreated)

	open := g.shut(t)
	before := g.begun.Load()
	others := []<-chan answer{later(func() answer { return neighbour.post(t, "/api/v1/accounts", `{"currency":"USD"}`) })}
	testenv.Eventually(t, 10*time.Second, equal(before+1, g.begun.Load)) // so whatever comes now waits in the queue
	answers := make(chan answer, flood)
	for n := range flood {
		go func() {
			answers <- flooder.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", fmt.Sprintf("flood-%d", n))
		}()
	}
	var refused []answer
	for range flood - share {
		a := soon(t, answers)
		a.is(t, http.StatusTooManyRequests, "rate-limited")
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		refused = append(refused, a)
	}
	again := flooder.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", "finished")
	if again.body != finished.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("a finished key got %+v", again)
	}
	flooder.newClient(t).post(t, "/api/v1/accounts", `{"currency":"USD"}`).is(t, http.StatusTooManyRequests, "rate-limited") // the share is the tenant's
	for range share - 1 {
		others = append(others, later(func() answer { return neighbour.post(t, "/api/v1/accounts", `{"currency":"USD"}`) }))
	}
	testenv.Eventually(t, 10*time.Second, equal(2*share-1, g.group.Load().Waiting))
	open()
	for range share {
		(<-answers).wantStatus(t, http.StatusCreated)
	}
	for _, other := range others {
		(<-other).wantStatus(t, http.StatusCreated)
	}

	// Nothing was done for those that were refused, and there is room again.
	if n := g.number(t, `SELECT count(*) FROM idempotency_keys WHERE key LIKE 'flood-%'`); n != share {
		t.Errorf("%d of the flood were executed", n)
	}
	for _, a := range refused[:2*share] {
		flooder.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", a.header.Get("Idempotency-Key")).wantStatus(t, http.StatusCreated)
	}
}

func TestLostCommitIsUnknownUntilRepeated(t *testing.T) {
	t.Parallel()
	for fate, replayed := range map[pgproxy.Fate]string{pgproxy.LoseReply: "true", pgproxy.LoseRequest: "false"} {
		t.Run(fate.String(), func(t *testing.T) {
			t.Parallel()
			g := startGrouped(t, groupcommit.Options{}, nil)
			var away atomic.Bool
			away.Store(true)
			config := g.write.Config()
			proxy := pgproxy.Start(t, config.ConnString(), func(int, int) pgproxy.Fate {
				if away.Load() {
					return fate
				}
				return pgproxy.Pass
			})
			proxy.Through(&config.ConnConfig.Config)
			pool, err := pgxpool.NewWithConfig(context.Background(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			c := g.caller
			from, to := c.funded(t, 100), c.account(t)
			g.over(t, pool, groupcommit.Options{})
			pay := func() answer {
				return c.post(t, "/api/v1/payments", order(from, to, 60), "Idempotency-Key", "lost")
			}
			first := pay()
			if p := first.is(t, http.StatusServiceUnavailable, "outcome-unknown"); p.Retry != "same-key" || first.header.Get("Retry-After") == "" {
				t.Errorf("%+v", first)
			}
			away.Store(false)
			var repeat answer
			testenv.Eventually(t, 10*time.Second, func() error {
				if repeat = pay(); repeat.status == http.StatusConflict {
					return errors.New("the server has not noticed yet that the connection is gone")
				}
				return nil
			})
			repeat.wantStatus(t, http.StatusCreated)
			if got := repeat.header.Get("Idempotent-Replayed"); got != replayed {
				t.Errorf("the repeat says Idempotent-Replayed: %s", got)
			}
			if diff := cmp.Diff(1, g.number(t, `SELECT count(*) FROM payments WHERE idempotency_key = 'lost'`)); diff != "" {
				t.Error(diff)
			}
			g.wantBalanced(t)
		})
	}
}

// Beyond the rate a replay does not go through Submit. It is a promise all the same: sent when its
// COMMIT has gone through.
func TestReplayBeyondRateIsCommitted(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	a := start(t, func(o *httpapi.Options) {
		o.RateLimit = 0.001 // one, and the next in a quarter of an hour

		config := o.Write.(*pgxpool.Pool).Config()
		proxy := pgproxy.Start(t, config.ConnString(), func(int, int) pgproxy.Fate {
			if away.Load() {
				return pgproxy.LoseReply
			}
			return pgproxy.Pass
		})
		proxy.Through(&config.ConnConfig.Config)
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		o.Write = pool
	})
	create := func() answer {
		return a.caller.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", "k")
	}

	first := create()
	first.wantStatus(t, http.StatusCreated)
	away.Store(true)
	create().is(t, http.StatusServiceUnavailable, "outcome-unknown")
	away.Store(false)
	if replay := create(); replay.body != first.body || replay.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the replay is %+v, the first answer %s", replay, first.body)
	}
}

// The handler gives up at its deadline; the commit goes on and pays.
func TestDeadlineDuringCommitIsUnknown(t *testing.T) {
	t.Parallel()
	g := startGrouped(t, groupcommit.Options{Committers: 1, Timeout: time.Minute}, nil)
	c := g.caller
	from, to := c.funded(t, 100), c.account(t)
	pay := func() answer {
		return c.post(t, "/api/v1/payments", order(from, to, 60), "Idempotency-Key", "slow")
	}

	open := g.shut(t)
	pay().is(t, http.StatusServiceUnavailable, "outcome-unknown")
	open()
	testenv.Eventually(t, 10*time.Second, func() error {
		return equal(1, func() int { return g.number(t, `SELECT count(*) FROM payments WHERE idempotency_key = 'slow'`) })()
	})
	if replay := pay(); replay.status != http.StatusCreated || replay.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the repeat: %+v", replay)
	}
}

func TestLockedAccountIsUnavailable(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 100), c.account(t)
	tx, err := a.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM accounts WHERE id = $1 FOR UPDATE`, from); err != nil {
		t.Fatal(err)
	}

	pay := func() answer {
		return c.post(t, "/api/v1/payments", order(from, to, 60), "Idempotency-Key", "k", "X-Request-Id", "held")
	}
	refused := pay() // after 5 s
	if p := refused.is(t, http.StatusServiceUnavailable, "unavailable"); p.Retry != "same-key" || refused.header.Get("Retry-After") == "" {
		t.Errorf("%+v", refused)
	}
	testenv.Eventually(t, 20*time.Second, equal("busy", func() string { return a.last("held").Outcome }))

	waits := later(pay)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if paid := soon(t, waits); paid.status != http.StatusCreated || paid.header.Get("Idempotent-Replayed") != "false" {
		t.Errorf("%+v", paid)
	}
}

func TestFullQueueSendsRetryAfter(t *testing.T) {
	t.Parallel()
	g := startGrouped(t, groupcommit.Options{Committers: 1, Queue: 1}, nil)
	open := g.shut(t)
	create := func() answer { return g.caller.post(t, "/api/v1/accounts", `{"currency":"USD"}`) }
	busy := later(create)
	testenv.Eventually(t, 10*time.Second, equal(1, g.begun.Load))
	waits := later(create)
	testenv.Eventually(t, 10*time.Second, equal(1, g.group.Load().Waiting))
	key := uuid.NewString()
	refused := g.caller.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", key)
	if p := refused.is(t, http.StatusServiceUnavailable, "unavailable"); p.Retry != "same-key" || refused.header.Get("Retry-After") == "" {
		t.Errorf("%+v", refused)
	}
	open()
	(<-busy).wantStatus(t, http.StatusCreated)
	(<-waits).wantStatus(t, http.StatusCreated)
	if n := g.number(t, `SELECT count(*) FROM idempotency_keys WHERE key = $1`, key); n != 0 {
		t.Error("it was executed")
	}
}

package payments_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// lock locks accounts as an operator does who left psql in a transaction, until release is called.
func (b *bank) lock(t *testing.T, accounts ...uuid.UUID) (release func()) {
	t.Helper()
	tx, err := b.owner.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	if _, err := tx.Exec(t.Context(), `UPDATE accounts SET name = name WHERE id = ANY ($1)`, accounts); err != nil {
		t.Fatal(err)
	}
	return release
}

// once processes a batch and does not wait for held accounts.
func (b *bank) once(t *testing.T, rs ...payments.Request) []idempotency.Answer {
	t.Helper()
	as, err := b.Processor.Process(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	return as
}

func states(as []idempotency.Answer) (names []string) {
	for _, a := range as {
		names = append(names, a.State.String())
	}
	return names
}

func TestOnlyLockedAccountWaits(t *testing.T) {
	t.Parallel()
	var counter statements
	b := newBank(t, &counter)
	var held []uuid.UUID
	b.OnHeld = func(account uuid.UUID) { held = append(held, account) }
	stuck, a, c := b.customer(t, 100), b.customer(t, 100), b.customer(t, 100)
	done := b.pay(stuck, a, 1)
	b.process(t, done)
	release := b.lock(t, stuck)

	// Unknown accounts, wherever they are in the order of locks, are not taken for the one that is
	// locked.
	batch := []payments.Request{
		b.pay(a, c, 1), b.pay(a, stuck, 1), b.pay(stuck, c, 1), done, b.pay(a, uuid.New(), 1), b.pay(uuid.Nil, a, 1), b.pay(c, a, 1),
	}
	batch = append(batch, b.pay(a, uuid.UUID{15: 1}, 1)) // before all that exist
	for range 20 {
		batch = append(batch, b.pay(a, uuid.New(), 1))
	}
	as := b.once(t, batch...)
	if diff := cmp.Diff([]string{"new", "busy", "busy", "replay", "new", "new", "new"}, states(as)[:7]); diff != "" {
		t.Error(diff)
	}
	wantStatus(t, as[0], 201)
	wantStatus(t, as[4], 422)
	if !slices.Equal(held, []uuid.UUID{stuck}) {
		t.Errorf("held are %v, want %s", held, stuck)
	}
	waits, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if b.Await(waits, batch[1]) {
		t.Error("Await returned true while the account is locked")
	}

	// Known from now on: the next batch waits for nothing.
	before := counter.Load()
	next := b.once(t, b.pay(c, a, 1), again(batch[1]))
	if diff := cmp.Diff([]string{"new", "busy"}, states(next)); diff != "" {
		t.Error(diff)
	}
	if n := counter.Load() - before; n != 13 {
		t.Errorf("%d statements, want 13: one transaction", n)
	}

	release()
	for _, r := range batch[1:3] {
		if !b.Await(soon(t), r) {
			t.Error("Await returned false although the account is free")
		}
		wantStatus(t, b.process(t, r)[0], 201)
	}
	if b.balance(t, stuck) != 99 {
		t.Errorf("the account has %d", b.balance(t, stuck))
	}
	b.wantBalanced(t)
}

func again(r payments.Request) payments.Request {
	r.RequestID = uuid.NewString()
	return r
}

func TestManyLockedAccounts(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	free := []uuid.UUID{b.customer(t, 100), b.customer(t, 100)}
	var stuck []uuid.UUID
	for range 6 {
		stuck = append(stuck, b.customer(t, 100))
	}
	release := b.lock(t, stuck...)

	batch := []payments.Request{b.pay(free[0], free[1], 1)}
	want := []string{"new"}
	for _, id := range stuck {
		batch, want = append(batch, b.pay(free[1], id, 1)), append(want, "busy")
	}
	if diff := cmp.Diff(want, states(b.once(t, batch...))); diff != "" {
		t.Error(diff)
	}

	// Each is watched by one of its requests, some after the others.
	release()
	var all sync.WaitGroup
	for _, r := range batch[1:] {
		all.Go(func() {
			if !b.Await(soon(t), r) {
				t.Error("Await returned false although the account is free")
			}
		})
	}
	all.Wait()
	for _, a := range b.process(t, batch[1:]...) {
		wantStatus(t, a, 201)
	}
	b.wantBalanced(t)
}

// An operator locks many accounts in one transaction. Learned one by one, each costs everybody 200 ms.
func TestAccountsLockedTogether(t *testing.T) {
	t.Parallel()
	const many = 100
	b := newBank(t, nil)
	one, other := b.customer(t, 10), b.customer(t, 10)
	batch := []payments.Request{b.pay(one, other, 1)}
	var stuck []uuid.UUID
	for range many {
		id := b.open(t, payments.Customer, "USD")
		stuck, batch = append(stuck, id), append(batch, b.pay(b.system, id, 1))
	}
	release := b.lock(t, stuck...)

	ctx, cancel := context.WithTimeout(t.Context(), many*100*time.Millisecond)
	defer cancel()
	as, err := b.Processor.Process(ctx, batch)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, as[0], 201)
	for i, a := range as[1:] {
		if a.State != idempotency.Busy {
			t.Errorf("payment %d of a locked account is %s", i, a.State)
		}
	}

	release()
	for _, a := range b.process(t, batch[1:]...) {
		wantStatus(t, a, 201)
	}
	b.wantBalanced(t)
}

// slowCommits makes every COMMIT of a payment take so long, with its rows locked, as a slow disk or standby does.
func (b *bank) slowCommits(t *testing.T, seconds float64) {
	t.Helper()
	if _, err := b.owner.Exec(t.Context(), fmt.Sprintf(`
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(%g); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION slow()`, seconds)); err != nil {
		t.Fatal(err)
	}
}

// Batches that pay from one account follow each other, however long a COMMIT takes. Were it taken for held, all but one
// payment would be sent away each time.
func TestSlowCommitHoldsNothing(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	hot, account := b.customer(t, 100), b.customer(t, 0)
	b.slowCommits(t, 0.5)
	began := time.Now()
	paused := func() bool { return time.Since(began) > 4*time.Second } // the machine: then it is held
	b.OnHeld = func(account uuid.UUID) {
		if !paused() {
			t.Errorf("%s counts as held", account)
		}
	}

	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			r := []payments.Request{b.pay(hot, account, 1)}
			as, err := b.Processor.Process(soon(t), r)
			for err == nil && as[0].State == idempotency.Busy && paused() {
				as, err = b.Processor.Process(soon(t), r)
			}
			if err != nil || as[0].State != idempotency.New {
				t.Errorf("answered %v, %v", states(as), err)
			}
		})
	}
	all.Wait()
	if n := b.balance(t, hot); n != 97 {
		t.Errorf("the account has %d", n)
	}
	b.wantBalanced(t)
}

// beforeThird runs a function before the third transaction begins.
type beforeThird struct {
	idempotency.Beginner
	n   atomic.Int32
	run func()
}

func (b *beforeThird) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	if b.n.Add(1) == 3 {
		b.run()
	}
	return b.Beginner.BeginTx(ctx, opts)
}

// Whoever looks between the end of one transaction and the start of the next sees nobody. That is not yet somebody who
// hides. Two sessions that share a lock hide as well: their row names neither.
func TestRowThatChangesHandsIsFree(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	one, other := b.customer(t, 100), b.customer(t, 100)
	var shared []pgx.Tx
	for range 2 {
		tx, err := b.owner.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), `SELECT FROM accounts WHERE id = $1 FOR SHARE`, one); err != nil {
			t.Fatal(err)
		}
		shared = append(shared, tx)
	}

	p := payments.Processor{Retention: b.Retention, Render: render}
	p.OnHeld = func(account uuid.UUID) { t.Errorf("%s counts as held", account) }
	p.DB = &beforeThird{Beginner: b.DB, run: func() { // the batch was blocked, then it looked
		for _, tx := range shared {
			_ = tx.Rollback(context.Background())
		}
	}}
	as, err := p.Process(soon(t), []payments.Request{b.pay(one, other, 1)})
	if diff := cmp.Diff([]string{"new"}, states(as)); diff != "" {
		t.Error(diff, err)
	}
}

// An account that was taken for held, and that only our own slow transactions have since, is free.
func TestSlowCommitsSetAccountFree(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	hot, account := b.customer(t, 100), b.customer(t, 0)
	release := b.lock(t, hot)
	r := b.pay(hot, account, 1)
	if a := b.once(t, r)[0]; a.State != idempotency.Busy {
		t.Fatalf("the payment of a locked account is %s", a.State)
	}
	release()
	b.slowCommits(t, 2.8)
	began := time.Now()

	other := &payments.Processor{DB: b.DB, Retention: b.Retention, Render: render} // another instance
	done := make(chan error, 1)
	go func() {
		_, err := other.Process(soon(t), []payments.Request{b.pay(hot, account, 1)})
		done <- err
	}()
	testenv.Eventually(t, 10*time.Second, func() error {
		if len(done) == 0 && count(t, b.owner, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`) == 0 {
			return errors.New("it has not come to its COMMIT")
		}
		return nil
	})
	waits, cancel := context.WithTimeout(t.Context(), 2*time.Second) // the COMMIT takes longer
	defer cancel()
	if !b.Await(waits, r) && time.Since(began) < 2500*time.Millisecond { // unless the machine paused
		t.Error("the account counts as held")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// One of ours that does nothing has stopped in the middle: a frozen instance.
func TestFrozenInstanceHoldsAccount(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stuck, account := b.customer(t, 100), b.customer(t, 100)
	frozen, err := b.DB.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = frozen.Rollback(context.Background()) }()
	if _, err := payments.Execute(t.Context(), frozen, []payments.Request{b.pay(b.system, stuck, 1)}); err != nil {
		t.Fatal(err)
	}

	as, err := b.Processor.Process(soon(t), []payments.Request{b.pay(stuck, account, 1)})
	if diff := cmp.Diff([]string{"busy"}, states(as)); diff != "" {
		t.Error(diff, err)
	}
}

// One of ours may never end: its COMMIT waits for a standby that is away. The batch's 8 s are not all for it.
func TestEndlessTransactionHoldsAccount(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stuck, one, other := b.customer(t, 100), b.customer(t, 100), b.customer(t, 100)
	endless, err := b.DB.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := payments.Execute(t.Context(), endless, []payments.Request{b.pay(b.system, stuck, 1)}); err != nil {
		t.Fatal(err)
	}
	pid, done := endless.Conn().PgConn().PID(), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = endless.Exec(context.Background(), `SELECT pg_sleep(60)`)
		_ = endless.Rollback(context.Background())
	}()
	defer func() {
		count(t, b.owner, `SELECT pg_terminate_backend($1)::int`, pid)
		<-done
	}()

	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	as, err := b.Processor.Process(ctx, []payments.Request{b.pay(stuck, one, 1), b.pay(one, other, 1)})
	if diff := cmp.Diff([]string{"busy", "new"}, states(as)); diff != "" {
		t.Error(diff, err)
	}
}

// That an account is locked is no business of other tenants: to them it is unknown, as ever.
func TestLockedAccountIsUnknownToOthers(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stuck, account := b.customer(t, 100), b.customer(t, 100)
	b.lock(t, stuck)
	if diff := cmp.Diff([]string{"busy"}, states(b.once(t, b.pay(stuck, account, 1)))); diff != "" {
		t.Fatal(diff)
	}

	b.tenant = uuid.New()
	wantStatus(t, b.once(t, b.pay(stuck, account, 1))[0], 422)
}

// submit is what the API does with a request: it waits apart, and goes through the group.
func (b *bank) submit(ctx context.Context, g *group, r payments.Request) (idempotency.Answer, error) {
	for {
		a, err := g.Do(ctx, r)
		if err != nil || a.State != idempotency.Busy || !b.Await(ctx, r) {
			return a, err
		}
	}
}

func TestStuckAccountOccupiesNoCommitter(t *testing.T) {
	t.Parallel()
	const payers, each, waiters = 8, 100, 40
	b := newBank(t, nil)
	stuck := b.customer(t, 1000)
	var accounts []uuid.UUID
	for range payers + 1 {
		accounts = append(accounts, b.customer(t, 1000))
	}
	g, _ := grouped(t, b.Processor.Process, groupcommit.Options{})

	// typical pays between the other accounts, and returns what the median of these payments takes.
	typical := func() time.Duration {
		var paying sync.WaitGroup
		took := make([]time.Duration, payers*each)
		for i := range payers {
			paying.Go(func() {
				for n := range each {
					began := time.Now()
					a, err := b.submit(soon(t), g, b.pay(accounts[i], accounts[i+1], 1))
					if err != nil || a.Response.Status != 201 {
						t.Errorf("answered %s %d, %v", a.State, a.Response.Status, err)
					}
					took[i*each+n] = time.Since(began)
				}
			})
		}
		paying.Wait()
		slices.Sort(took)
		return took[len(took)/2]
	}
	usual := typical()

	// A batch that waits for the account takes 200 ms longer. So may all while another test is built.
	tries := 1
	for ; tries <= 3; tries++ {
		release := b.lock(t, stuck)

		var waiting sync.WaitGroup
		for i := range waiters {
			waiting.Go(func() {
				r := b.pay(accounts[i%payers], stuck, 1)
				for { // as a client: until it is answered
					a, err := b.submit(soon(t), g, r)
					if err != nil {
						t.Error(err)
					}
					if err != nil || a.State != idempotency.Busy {
						wantStatus(t, a, 201)
						return
					}
				}
			})
		}

		beside := typical()
		release()
		waiting.Wait()

		usual = max(usual, typical())
		if beside <= usual+100*time.Millisecond {
			break
		}
		t.Logf("payments of other accounts took %s, and %s beside the locked one", usual, beside)
	}
	if tries > 3 {
		t.Fatal("the locked account holds up the others")
	}
	if balance := b.balance(t, stuck); balance != int64(1000+tries*waiters) {
		t.Errorf("the account has %d", balance)
	}
	b.wantBalanced(t)
}

// An account that was taken for held must become free although its row is always locked, by one
// payer after the other.
func TestHotAccountBecomesFree(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	hot := b.customer(t, 10)
	r := b.pay(hot, b.customer(t, 0), 1)
	release := b.lock(t, hot)
	if a, err := b.Processor.Process(t.Context(), []payments.Request{r}); err != nil || a[0].State != idempotency.Busy {
		t.Fatalf("answered %v, %v", states(a), err)
	}

	ctx, stop := context.WithCancel(soon(t))
	var payers sync.WaitGroup
	for range 2 { // the pool has four connections
		payers.Go(func() {
			for ctx.Err() == nil { // one statement is one transaction
				if _, err := b.owner.Exec(context.WithoutCancel(ctx), `WITH a AS MATERIALIZED (SELECT FROM accounts WHERE id = $1 FOR NO KEY UPDATE) SELECT pg_sleep(0.03) FROM a`, hot); err != nil {
					t.Error(err)
				}
			}
		})
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if count(t, b.owner, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) < 2 {
			return errors.New("not all wait")
		}
		return nil
	})
	release()
	if !b.Await(t.Context(), r) { // within 5 s
		t.Error("the account counts as held")
	}
	stop()
	payers.Wait()
}

// Customers pay each other in both directions. Rows are locked from the lowest id to the highest
// whatever the direction, by every version that runs next to this one during a deploy: any other
// order would end in deadlocks.
func TestAccountsAreLockedByID(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	var accounts []uuid.UUID // UUIDv7: in the order of their ids
	for range 8 {
		accounts = append(accounts, b.customer(t, 10))
	}
	lowest, others := accounts[0], accounts[1:]
	var there, back []payments.Request
	for _, other := range others {
		there, back = append(there, b.pay(lowest, other, 1)), append(back, b.pay(other, lowest, 1))
	}

	for _, batch := range [][]payments.Request{there, back} {
		release := b.lock(t, lowest)
		done := make(chan struct{})
		go func() {
			defer close(done)
			as, err := b.Processor.Process(soon(t), batch)
			if err != nil || len(as) != len(batch) || as[0].State != idempotency.Busy {
				t.Errorf("%v, %v", states(as), err)
			}
		}()
		for waits := true; waits; {
			if free := count(t, b.owner, `SELECT count(*) FROM (SELECT FROM accounts WHERE id = ANY ($1) FOR NO KEY UPDATE SKIP LOCKED) a`, others); free != int64(len(others)) {
				t.Fatalf("%d of %d higher accounts were locked before the lowest one", int64(len(others))-free, len(others))
			}
			select {
			case <-done:
				waits = false
			default:
			}
		}
		release()
		if !b.Await(soon(t), batch[0]) {
			t.Error("Await returned false although the account is free")
		}
	}
}

// A table that is locked for a moment, by an upkeep or a migration, is waited for as long as the
// session allows.
func TestOnlyAccountsAreWaitedForBriefly(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	config := b.DB.(*pgxpool.Pool).Config()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "2s"
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()

	if _, err := payments.Execute(t.Context(), tx, []payments.Request{b.pay(b.system, uuid.New(), 1)}); err != nil {
		t.Fatal(err)
	}
	var timeout string
	if err := tx.QueryRow(t.Context(), `SHOW lock_timeout`).Scan(&timeout); err != nil || timeout != "2s" {
		t.Errorf("lock_timeout is %s, want the session's 2s: %v", timeout, err)
	}
}

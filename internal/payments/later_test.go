package payments_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// Later commands: those about a payment that is there.

func (b *bank) authorize(from, to uuid.UUID, amount int64, d time.Duration) payments.Request {
	r := b.pay(from, to, amount)
	c := r.Command.(payments.CreatePayment)
	c.Authorization = d
	r.Command = c
	return r
}

// made returns the payments that were answered.
func made(t testing.TB, as []idempotency.Answer) (ids []uuid.UUID) {
	t.Helper()
	for _, a := range as {
		wantStatus(t, a, 201)
		ids = append(ids, decode[payments.Payment](t, a).ID)
	}
	return ids
}

// authorized returns n payments of 1 that are held for d.
func (b *bank) authorized(t testing.TB, n int, from, to uuid.UUID, d time.Duration) []uuid.UUID {
	t.Helper()
	var rs []payments.Request
	for range n {
		rs = append(rs, b.authorize(from, to, 1, d))
	}
	return made(t, b.process(t, rs...))
}

func (b *bank) capture(id uuid.UUID) payments.Request {
	return b.request(payments.CapturePayment{Target: payments.Target{PaymentID: id}})
}

func (b *bank) cancel(id uuid.UUID) payments.Request {
	return b.request(payments.CancelPayment{Target: payments.Target{PaymentID: id}})
}

func (b *bank) refund(id uuid.UUID, amount int64) payments.Request {
	return b.request(payments.RefundPayment{Target: payments.Target{PaymentID: id}, AmountMinor: amount})
}

func each(ids []uuid.UUID, request func(uuid.UUID) payments.Request) (rs []payments.Request) {
	for _, id := range ids {
		rs = append(rs, request(id))
	}
	return rs
}

// docs/design.md has these numbers.
func TestStatementsOfLaterCommandsAreConstant(t *testing.T) {
	t.Parallel()
	var counter statements
	b := newBank(t, &counter)
	from, to := b.customer(t, 1_000_000), b.customer(t, 0)
	cost := func(do func()) int64 {
		before := counter.Load()
		do()
		return counter.Load() - before
	}
	batch := func(rs []payments.Request) int64 {
		return cost(func() {
			for _, a := range b.process(t, rs...) {
				if a.Response.Status >= 300 {
					t.Errorf("%d %s", a.Response.Status, a.Response.Body)
				}
			}
		})
	}

	for _, n := range []int{1, 100} {
		captured := b.authorized(t, n, from, to, time.Hour)
		canceled := b.authorized(t, n, from, to, time.Hour)
		mixed := b.authorized(t, n, from, to, time.Hour)
		got := map[string]int64{
			"authorize": batch(each(mixed, func(uuid.UUID) payments.Request { return b.authorize(from, to, 1, time.Hour) })),
			"capture":   batch(each(captured, b.capture)),
			"cancel":    batch(each(canceled, b.cancel)),
			"refund":    batch(each(captured, func(id uuid.UUID) payments.Request { return b.refund(id, 0) })),
			"all": batch(append(each(mixed, b.capture), append(each(mixed, func(id uuid.UUID) payments.Request { return b.refund(id, 0) }),
				b.pay(from, to, 1), b.request(payments.CreateAccount{Kind: payments.Customer, Currency: "USD"}))...)),
		}
		b.authorized(t, n, from, to, time.Millisecond)
		b.wantBalanced(t) // meanwhile they expire
		got["expire"] = cost(func() {
			if done, err := b.ExpireBatch(t.Context(), 100); err != nil || done != n {
				t.Errorf("expired %d of %d: %v", done, n, err)
			}
		})
		want := map[string]int64{"authorize": 12, "capture": 16, "cancel": 15, "refund": 17, "all": 19, "expire": 11}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d: %s", n, diff)
		}
	}
	b.wantBalanced(t)
}

// lockPayment locks a payment as psql does, until release is called.
func (b *bank) lockPayment(t *testing.T, id uuid.UUID) (release func()) {
	t.Helper()
	tx, err := b.owner.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	if _, err := tx.Exec(t.Context(), `SELECT FROM payments WHERE id = $1 FOR UPDATE`, id); err != nil {
		t.Fatal(err)
	}
	return release
}

func TestOnlyLockedPaymentWaits(t *testing.T) {
	t.Parallel()
	var counter statements
	b := newBank(t, &counter)
	from, to := b.customer(t, 100), b.customer(t, 0)
	ids := b.authorized(t, 5, from, to, time.Hour)
	stuck := ids[2]
	release := b.lockPayment(t, stuck)

	batch := []payments.Request{
		b.capture(ids[0]), b.capture(stuck), b.cancel(stuck), b.capture(uuid.New()), b.cancel(ids[4]),
		b.pay(from, to, 1), b.refund(ids[0], 0),
	}
	if diff := cmp.Diff([]string{"new", "busy", "busy", "new", "new", "new", "new"}, states(b.once(t, batch...))); diff != "" {
		t.Error(diff)
	}

	// Known from now on: the next batch waits for nothing, and asks once for the accounts of payments.
	before := counter.Load()
	next := []payments.Request{b.capture(ids[1]), again(batch[1])}
	if diff := cmp.Diff([]string{"new", "busy"}, states(b.once(t, next...))); diff != "" {
		t.Error(diff)
	}
	if n := counter.Load() - before; n != 17 {
		t.Errorf("%d statements, want 17: one transaction", n)
	}
	stranger := &bank{Processor: b.Processor, owner: b.owner, tenant: uuid.New(), client: b.client}
	wantStatus(t, stranger.once(t, stranger.capture(stuck))[0], 422)

	release()
	if !b.Await(soon(t), batch[1]) {
		t.Error("Await returned false although the payment is free")
	}
	wantStatus(t, b.process(t, batch[1])[0], 200)
	wantStatus(t, b.process(t, batch[2])[0], 422)
	b.wantBalanced(t)
}

// A locked account makes the commands that change it wait, whichever side it is on, and no others: a
// cancellation changes the source alone.
func TestLockedAccountHoldsItsPayments(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stuck, one, other := b.customer(t, 100), b.customer(t, 100), b.customer(t, 100)
	source := b.authorized(t, 1, stuck, one, time.Hour)[0]
	destination := b.authorized(t, 2, one, stuck, time.Hour)
	paid := made(t, b.process(t, b.pay(other, stuck, 1)))[0]
	free := b.authorized(t, 2, one, other, time.Hour)
	release := b.lock(t, stuck)

	batch := []payments.Request{b.cancel(source), b.capture(destination[0]), b.refund(paid, 0), b.capture(free[0]), b.cancel(free[1]), b.pay(one, other, 1), b.cancel(destination[1])}
	for range 2 {
		if diff := cmp.Diff([]string{"busy", "busy", "busy"}, states(b.once(t, batch...))[:3]); diff != "" {
			t.Error(diff)
		}
	}
	for _, a := range b.once(t, batch[3:]...) {
		if a.State != idempotency.Replay || a.Response.Status >= 300 {
			t.Errorf("%s %d: it did not go on", a.State, a.Response.Status)
		}
	}

	release()
	for i, a := range b.process(t, batch[:3]...) {
		wantStatus(t, a, []int{200, 200, 201}[i])
	}
	b.wantBalanced(t)
}

// expire waits until the payments' time is over and sweeps once, as the worker does.
func (b *bank) expire(t *testing.T) (released int) {
	t.Helper()
	for {
		n, err := b.ExpireBatch(soon(t), 3)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return released
		}
		released += n
	}
}

func TestSweepLeavesOutLockedRows(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stuck, one, other := b.customer(t, 100), b.customer(t, 100), b.customer(t, 100)
	for range 2 {
		b.authorized(t, 2, stuck, one, time.Millisecond)
		b.authorized(t, 2, one, stuck, time.Millisecond)
		b.authorized(t, 2, one, other, time.Millisecond)
	}
	locked := b.authorized(t, 1, other, one, time.Millisecond)[0]
	releaseAccount, releasePayment := b.lock(t, stuck), b.lockPayment(t, locked)

	if n := b.expire(t); n != 8 {
		t.Errorf("released %d, want the 8 whose source nothing locks", n)
	}
	releasePayment()
	if n := b.expire(t); n != 1 {
		t.Errorf("released %d, want the payment that was locked", n)
	}
	releaseAccount()
	if n := b.expire(t); n != 4 {
		t.Errorf("released %d, want the 4 whose account was locked", n)
	}
	b.wantBalanced(t)
}

// Several sweeps at once share the work, and none does it twice.
func TestSweepsShareTheWork(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	from, to := b.customer(t, 1000), b.customer(t, 0)
	for range 4 {
		b.authorized(t, 50, from, to, time.Millisecond)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	released := 0
	for range 4 {
		all.Go(func() {
			for n := 1; n > 0; {
				var err error
				if n, err = b.ExpireBatch(soon(t), 30); err != nil {
					t.Error(err)
				}
				mu.Lock()
				released += n
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if released += b.expire(t); released != 200 {
		t.Errorf("released %d of 200", released)
	}
	b.wantBalanced(t)
}

// Payments, captures, cancels, refunds and sweeps over the same few rows, from many connections.
func TestNoCommandsDeadlock(t *testing.T) {
	t.Parallel()
	const workers, batches = 6, 15
	b := newBank(t, nil)
	accounts := []uuid.UUID{b.system}
	for range 4 {
		accounts = append(accounts, b.customer(t, 10_000))
	}
	var shared []uuid.UUID
	for i := range 4 {
		shared = append(shared, b.authorized(t, 20, accounts[i], accounts[i+1], pick(rand.New(rand.NewPCG(1, uint64(i))), time.Hour, 500*time.Millisecond))...)
	}

	ctx, stop := context.WithCancel(context.Background())
	var work, sweeps sync.WaitGroup
	for range 2 {
		sweeps.Go(func() {
			for ctx.Err() == nil {
				if _, err := b.ExpireBatch(context.WithoutCancel(ctx), 10); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for worker := range workers {
		random := rand.New(rand.NewPCG(uint64(worker), 9))
		work.Go(func() {
			for range batches {
				var rs []payments.Request
				for range 1 + random.IntN(30) {
					id := pick(random, shared...)
					from := random.IntN(len(accounts))
					to := (from + 1 + random.IntN(len(accounts)-1)) % len(accounts)
					rs = append(rs, pick(random, b.capture(id), b.cancel(id), b.refund(id, 1), b.refund(id, 1),
						b.authorize(accounts[from], accounts[to], 1+random.Int64N(20), 20*time.Millisecond), b.pay(accounts[from], accounts[to], 1+random.Int64N(20))))
				}
				if _, err := b.Process(soon(t), rs); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	stop()
	sweeps.Wait()

	// Postgres tells its statistics when a connection ends, at the latest.
	b.DB.(interface{ Close() }).Close()
	if n := count(t, b.owner, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	for _, status := range []payments.Status{payments.Completed, payments.Canceled, payments.Expired} {
		if count(t, b.owner, `SELECT count(*) FROM payments WHERE status = $1`, status) == 0 {
			t.Errorf("no payment was %s: the test says little", status)
		}
	}
	b.wantBalanced(t)
}

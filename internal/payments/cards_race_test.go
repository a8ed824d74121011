package payments_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// Several workers share what is due. When the leases are over, all of it is due once more.
func TestClaimsShareTheWork(t *testing.T) {
	t.Parallel()
	const operations = 150
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	b.charges(t, operations, b.customer(t, 0))
	round := func(lease time.Duration, state payments.OperationState, token int64) {
		t.Helper()
		var mu sync.Mutex
		var all sync.WaitGroup
		times := map[uuid.UUID]int{}
		for range 5 {
			all.Go(func() {
				for {
					claimed, err := b.ClaimOperations(soon(t), 7, lease)
					if err != nil {
						t.Error(err)
					}
					if len(claimed) == 0 {
						return
					}
					mu.Lock()
					for _, o := range claimed {
						times[o.ID]++
						if o.State != state || o.Token != token || o.Tries != int(token) || o.Age <= 0 {
							t.Errorf("%+v", o)
						}
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for id, n := range times {
			if n != 1 {
				t.Errorf("%s was claimed %d times", id, n)
			}
		}
		if len(times) < operations { // SKIP LOCKED passes over what another claim is about to take
			t.Errorf("%d of %d were claimed", len(times), operations)
		}
	}
	round(time.Hour, payments.Pending, 1)
	b.claimed(t, 0)
	if _, err := b.owner.Exec(t.Context(), `UPDATE psp_operations SET next_try_at = now()`); err != nil {
		t.Fatal(err)
	}
	round(time.Hour, payments.Unknown, 2)
}

// The longest due comes first, whatever its state, and not before its time.
func TestClaimTakesTheLongestDue(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	ids := b.charges(t, 4, b.customer(t, 0))
	for i, due := range []string{"1 s", "-3 s", "-1 s", "-2 s"} {
		if _, err := b.owner.Exec(t.Context(), `UPDATE psp_operations SET next_try_at = now() + $2::interval WHERE payment_id = $1`, ids[i], due); err != nil {
			t.Fatal(err)
		}
	}
	var order []uuid.UUID
	for range 4 {
		claimed, err := b.ClaimOperations(t.Context(), 1, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range claimed {
			order = append(order, o.PaymentID)
		}
	}
	if diff := cmp.Diff([]uuid.UUID{ids[1], ids[3], ids[2]}, order[:min(3, len(order))]); diff != "" {
		t.Error(diff)
	}
}

// Workers claim, many goroutines record the same results in random batches, and clients refund to
// cards and between the same accounts. Each operation ends once.
func TestNoResultsDeadlock(t *testing.T) {
	t.Parallel()
	var counter statements
	b := newBank(t, &counter)
	b.open(t, payments.Clearing, "USD")
	shops := []uuid.UUID{b.customer(t, 1000), b.customer(t, 1000), b.customer(t, 1000)}
	var paid []uuid.UUID
	for _, shop := range shops {
		paid = append(paid, b.charges(t, 25, shop)...)
	}

	var mu sync.Mutex
	results := map[uuid.UUID]payments.Result{} // what the PSP did
	applied := map[uuid.UUID]int{}

	// Some are paid before, so that refunds are accepted however the others are scheduled.
	first, err := b.ClaimOperations(soon(t), 20, time.Hour)
	if err != nil || len(first) != 20 {
		t.Fatalf("claimed %d, %v", len(first), err)
	}
	var ended []payments.Result
	for _, o := range first {
		results[o.ID], applied[o.ID] = succeeded(o.ID), 1
		ended = append(ended, results[o.ID])
	}
	b.recordAll(t, slices.Repeat([]payments.Recorded{payments.Applied}, len(first)), ended...)

	known := func(random *rand.Rand) (some []payments.Result) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range results {
			if random.IntN(8) == 0 {
				some = append(some, r)
			}
		}
		random.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		return some
	}
	record := func(random *rand.Rand) {
		some := known(random)
		recorded, err := b.Record(soon(t), some)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for i, r := range recorded {
			switch {
			case r == payments.Applied && some[i].State.Ended():
				applied[some[i].OperationID]++
			case r == payments.Applied, r == payments.Repeated, r == payments.Stale, r == payments.Locked:
			default:
				t.Errorf("recorded %d", r)
			}
		}
	}
	claim := func(random *rand.Rand) {
		claimed, err := b.ClaimOperations(soon(t), 1+random.IntN(20), time.Hour)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, o := range claimed {
			results[o.ID] = payments.Result{OperationID: o.ID, State: pick(random, payments.Succeeded, payments.Succeeded, payments.OperationDeclined, payments.OperationFailed)}
		}
	}
	command := func(random *rand.Rand) {
		var rs []payments.Request
		for range 1 + random.IntN(10) {
			from := random.IntN(3)
			rs = append(rs, pick(random, b.refund(pick(random, paid...), 1+random.Int64N(4)), b.refund(pick(random, paid...), 1),
				b.pay(shops[from], shops[(from+1)%3], 1+random.Int64N(5)), b.authorize(shops[from], shops[(from+2)%3], 2, time.Hour), b.byCard(shops[from], 3)))
		}
		if _, err := b.Process(soon(t), rs); err != nil {
			t.Error(err)
		}
	}

	var all sync.WaitGroup
	for worker, act := range []func(*rand.Rand){claim, record, record, record, command, command} {
		random := rand.New(rand.NewPCG(uint64(worker), 13))
		all.Go(func() {
			for range 25 {
				act(random)
			}
		})
	}
	all.Wait()

	for range 20 {
		claim(rand.New(rand.NewPCG(1, 1)))
	}
	everything := slices.Collect(maps.Values(results))
	testenv.Eventually(t, 10*time.Second, func() error {
		recorded, err := b.Record(t.Context(), everything)
		mu.Lock()
		defer mu.Unlock()
		for i, r := range recorded {
			if r == payments.Applied {
				applied[everything[i].OperationID]++
			}
			if r == payments.Locked {
				err = errors.New("one is locked")
			}
		}
		return err
	})
	for id := range results {
		if applied[id] != 1 {
			t.Errorf("%s ended %d times", id, applied[id])
		}
	}
	if n := counter.deadlocks.Load(); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	if n := count(t, b.owner, `SELECT count(*) FROM refunds WHERE settled_at IS NOT NULL`); n == 0 {
		t.Error("no refund was settled: the test says little")
	}
	if n := count(t, b.owner, `SELECT count(*) FROM psp_operations WHERE ended_at IS NULL`); n != 0 {
		t.Errorf("%d have not ended", n)
	}
	b.wantBalanced(t)
}

// The reply to COMMIT is lost, or COMMIT itself: of claims, and of results. Every operation is claimed
// again in the end, and ends once.
func TestLostCommitsOfClaimsAndResults(t *testing.T) {
	t.Parallel()
	for _, fate := range []pgproxy.Fate{pgproxy.LoseReply, pgproxy.LoseRequest, pgproxy.Cut} {
		t.Run(fate.String(), func(t *testing.T) {
			t.Parallel()
			const operations = 30
			b := newBank(t, nil)
			b.open(t, payments.Clearing, "USD")
			shop := b.customer(t, 0)
			b.charges(t, operations, shop)
			var lost atomic.Int64
			b.through(t, func(_, commit int) pgproxy.Fate {
				if commit%2 == 0 {
					lost.Add(1)
					return fate
				}
				return pgproxy.Pass
			})

			sent := map[uuid.UUID]bool{}
			for len(sent) < operations {
				claimed, err := b.ClaimOperations(soon(t), 4, time.Millisecond)
				if err != nil && !errors.Is(err, idempotency.ErrOutcomeUnknown) {
					t.Fatal(err)
				}
				var results []payments.Result
				for _, o := range claimed {
					if sent[o.ID] {
						t.Errorf("%s has ended and was claimed", o.ID)
					}
					sent[o.ID] = true
					results = append(results, succeeded(o.ID))
				}
				recorded, err := b.Record(soon(t), results)
				for errors.Is(err, idempotency.ErrOutcomeUnknown) {
					recorded, err = b.Record(soon(t), results)
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range recorded {
					if r != payments.Applied && r != payments.Repeated { // by ourselves
						t.Errorf("recorded %d", r)
					}
				}
			}
			if lost.Load() < 5 {
				t.Errorf("%d COMMITs were lost: the test says little", lost.Load())
			}
			if n := b.balance(t, shop); n != 10*operations {
				t.Errorf("the account has %d", n)
			}
			b.wantBalanced(t)
		})
	}
}

// docs/design.md has these numbers.
func TestStatementsOfOperationsAreConstant(t *testing.T) {
	t.Parallel()
	var counter statements
	b := newBank(t, &counter)
	b.open(t, payments.Clearing, "USD")
	shop := b.customer(t, 0)
	cost := func(do func()) int64 {
		before := counter.Load()
		do()
		return counter.Load() - before
	}
	for _, n := range []int{1, 100} {
		got := map[string]int64{}
		var paid []uuid.UUID
		got["charge"] = cost(func() { paid = b.charges(t, n, shop) })
		settle := func(what string, state payments.OperationState) {
			var results []payments.Result
			got["claim"] = cost(func() {
				for _, o := range b.claimed(t, n) {
					results = append(results, payments.Result{OperationID: o.ID, Token: o.Token, State: state})
				}
			})
			got[what] = cost(func() {
				if _, err := b.Record(context.Background(), results); err != nil {
					t.Error(err)
				}
			})
		}
		settle("unknown", payments.Unknown)
		settle("charged", payments.Succeeded)
		got["refund"] = cost(func() { b.process(t, each(paid, func(id uuid.UUID) payments.Request { return b.refund(id, 5) })...) })
		settle("refunded", payments.Succeeded)
		b.process(t, each(paid, func(id uuid.UUID) payments.Request { return b.refund(id, 5) })...)
		settle("declined", payments.OperationDeclined)

		want := map[string]int64{"charge": 13, "claim": 4, "unknown": 6, "charged": 15, "refund": 17, "refunded": 17, "declined": 16}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d: %s", n, diff)
		}
	}
	b.wantBalanced(t)
}

// A claim does not walk through what is dead, and yet misses nothing for long: neither what is due for
// longer than it looks back, nor what a late transaction leaves there.
func TestClaimsStartWhereTheLastOneEnded(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	shop := b.customer(t, 0)
	old := func(n int) {
		b.charges(t, n, shop)
		if _, err := b.owner.Exec(t.Context(), `UPDATE psp_operations SET next_try_at = now() - interval '1 h' + interval '1 s' * tenths
			FROM (SELECT id, row_number() OVER () tenths FROM psp_operations WHERE state = 'pending') o WHERE o.id = psp_operations.id`); err != nil {
			t.Fatal(err)
		}
	}
	old(60) // 60 s, more than a claim looks back
	for range 6 {
		if claimed, err := b.ClaimOperations(t.Context(), 10, time.Hour); err != nil || len(claimed) != 10 {
			t.Errorf("claimed %d, %v", len(claimed), err)
		}
	}
	b.claimed(t, 0)

	old(1)
	b.charges(t, 1, shop)
	seen := 0
	testenv.Eventually(t, 90*time.Second, func() error {
		claimed, err := b.ClaimOperations(t.Context(), 10, time.Hour)
		if seen += len(claimed); err == nil && seen < 2 {
			err = errors.New("the old one is not claimed")
		}
		return err
	})
}

package psp_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
)

// bench runs a worker on fakes, in the fake time of a bubble.
type bench struct {
	*psp.Worker
	provider *provider

	mu       sync.Mutex
	due      []payments.Operation
	limits   []int // of the claims
	results  []payments.Result
	conflict int
	inFlight int // the most that was shown
	log      bytes.Buffer
}

func newBench(due ...payments.Operation) *bench {
	b := &bench{due: due, provider: &provider{execute: answer(psp.Succeeded), find: answer(psp.Refused)}}
	b.Worker = &psp.Worker{
		Claim: func(_ context.Context, limit int, _ time.Duration) ([]payments.Operation, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			n := min(limit, len(b.due))
			claimed := b.due[:n]
			b.due, b.limits = b.due[n:], append(b.limits, limit)
			return claimed, nil
		},
		Record:   b.record,
		Provider: psp.NewBreaker(b.provider, func(string) {}), KeyRetention: 24 * time.Hour,
		Concurrency: 4, Interval: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Observe: psp.Observer{
			FirstCall: silent.FirstCall, Begin: silent.Begin, Call: silent.Call,
			InFlight: func(n int) { b.inFlight = max(b.inFlight, n) },
			Recorded: silent.Recorded,
			Conflict: func(payments.OperationKind) { b.mu.Lock(); defer b.mu.Unlock(); b.conflict++ },
		},
	}
	return b
}

func (b *bench) record(_ context.Context, rs []payments.Result) ([]payments.Recorded, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.results = append(b.results, rs...)
	return make([]payments.Recorded, len(rs)), nil
}

// run runs the worker for d, in a bubble, and waits for its end.
func (b *bench) run(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := b.Run(ctx); err != nil {
		t.Error(err)
	}
}

func operations(n int) (ops []payments.Operation) {
	for range n {
		ops = append(ops, charge())
	}
	return ops
}

// TestSlots: no more operations are claimed than there are free slots; a slot is free when its result is recorded.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(operations(9)...)
		b.provider.execute = func(ctx context.Context, op payments.Operation) psp.Answer {
			<-time.After(time.Second)
			return answer(psp.Succeeded)(ctx, op)
		}
		b.Record = func(ctx context.Context, rs []payments.Result) ([]payments.Recorded, error) {
			<-time.After(time.Second)
			return b.record(ctx, rs)
		}
		began := time.Now()
		b.run(t, 5*time.Second)
		// Two seconds for each operation, four at a time.
		if len(b.results) != 9 || b.inFlight != 4 || slices.Max(b.limits) != 4 || time.Since(began) > 8*time.Second {
			t.Errorf("%d results, %d in flight, claims of %v, after %s", len(b.results), b.inFlight, b.limits, time.Since(began))
		}
	})
}

// TestPollsWhenNothingIsDue: once in an interval, and at once after an operation that left a full house.
func TestPollsWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.run(t, time.Second-time.Millisecond)
		if len(b.limits) != 50 {
			t.Errorf("%d claims in a second", len(b.limits))
		}
	})
}

// TestStopFinishesWhatIsClaimed: calls and records that are in hand end well after the signal, and nothing more is claimed.
func TestStopFinishesWhatIsClaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(operations(6)...)
		b.provider.execute = func(ctx context.Context, op payments.Operation) psp.Answer {
			select {
			case <-ctx.Done():
				return psp.Answer{Outcome: psp.Timeout}
			case <-time.After(5 * time.Second):
				return answer(psp.Succeeded)(ctx, op)
			}
		}
		b.run(t, time.Second)
		if len(b.results) != 4 || len(b.due) != 2 || b.results[0].State != payments.Succeeded {
			t.Errorf("%+v, %d are still due", b.results, len(b.due))
		}
	})
}

// TestBreaker: after ten failures in a row nothing is claimed; then one operation is the probe, until the provider works again.
func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(operations(30)...)
		var states []string
		b.Provider = psp.NewBreaker(b.provider, func(s string) { states = append(states, s) })
		b.provider.execute = answer(psp.ServerError)
		b.run(t, 4*time.Second)
		left := len(b.due) // beside the ten, up to three were in flight
		if left < 17 || left > 20 || b.Provider.State() != "open" {
			t.Fatalf("%s, %d are pending", b.Provider.State(), left)
		}
		b.run(t, 2*time.Second) // it is half-open in the middle of this
		if len(b.due) != left-1 || b.Provider.State() != "open" {
			t.Fatalf("%s, %d are pending", b.Provider.State(), len(b.due))
		}
		b.provider.execute = answer(psp.Declined) // an answer that we dislike, but an answer
		b.run(t, 6*time.Second)
		if len(b.due) != 0 || b.Provider.State() != "closed" {
			t.Errorf("%s, %d are pending", b.Provider.State(), len(b.due))
		}
		if got := strings.Join(states, " "); got != "open half-open open half-open closed" {
			t.Error(got)
		}
	})
}

// TestAnswersThatDoNotOpenTheBreaker: the provider works, whatever it thinks of us.
func TestAnswersThatDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[psp.Outcome]string{
		psp.Timeout: "open", psp.Unreachable: "open", psp.ServerError: "open",
		psp.Declined: "closed", psp.Refused: "closed", psp.Conflict: "closed", psp.KeyReused: "closed", psp.InProgress: "closed",
		psp.RateLimited: "closed", psp.Unauthorized: "closed", psp.Unreadable: "closed",
	} {
		t.Run(string(outcome), func(t *testing.T) {
			t.Parallel()
			b := psp.NewBreaker(&provider{execute: answer(outcome), find: answer(outcome)}, func(string) {})
			for range 4 {
				b.Charge(t.Context(), charge())
				b.Refund(t.Context(), refund())
				b.Find(t.Context(), charge())
			}
			if got := b.State(); got != want || (b.Room(5) == 5) != (want == "closed") {
				t.Errorf("the breaker is %s, with room for %d", got, b.Room(5))
			}
		})
	}
}

// TestDatabaseAway: a result is recorded when the database is back, or left when the lease ends.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away time.Duration
		want int
	}{"short": {15 * time.Second, 1}, "too long": {time.Minute, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(charge())
				began, tries := time.Now(), 0
				b.Record = func(ctx context.Context, rs []payments.Result) ([]payments.Recorded, error) {
					tries++
					if time.Since(began) < c.away {
						return nil, errors.New("no database")
					}
					return b.record(ctx, rs)
				}
				b.run(t, time.Second)
				if len(b.results) != c.want || tries < 8 || tries > 40 || time.Since(began) > 25*time.Second {
					t.Errorf("%d results after %d tries and %s", len(b.results), tries, time.Since(began))
				}
				if calls := b.provider.seen(); len(calls) != 1 {
					t.Errorf("calls: %v", calls)
				}
			})
		})
	}
}

// TestLockedRow: the result is tried again for five seconds, and then gives its slot up.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		locked  time.Duration
		results int
	}{"free in time": {4 * time.Second, 1}, "kept": {time.Minute, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(charge())
				began := time.Now()
				b.Record = func(ctx context.Context, rs []payments.Result) ([]payments.Recorded, error) {
					if time.Since(began) < c.locked {
						return []payments.Recorded{payments.Locked}, nil
					}
					return b.record(ctx, rs)
				}
				b.run(t, time.Second)
				if took := time.Since(began); len(b.results) != c.results || took < 4*time.Second || took > 10*time.Second {
					t.Errorf("%d results after %s", len(b.results), took)
				}
			})
		})
	}
}

// TestAlarms: what a person must look at is an error in the log that names operation and payment, without the credential.
func TestAlarms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcome  psp.Outcome
		recorded payments.Recorded
		alarm    bool
		conflict int
	}{
		"succeeded":        {psp.Succeeded, payments.Applied, false, 0},
		"declined":         {psp.Declined, payments.Applied, false, 0},
		"webhook first":    {psp.Succeeded, payments.Repeated, false, 0},
		"timeout":          {psp.Timeout, payments.Applied, false, 0},
		"claim lost":       {psp.Timeout, payments.Stale, false, 0},
		"another amount":   {psp.Conflict, payments.Applied, true, 1},
		"key reused":       {psp.KeyReused, payments.Applied, true, 1},
		"ended otherwise":  {psp.Succeeded, payments.Conflict, true, 1},
		"unbookable":       {psp.Succeeded, payments.Unbookable, true, 0},
		"no operation":     {psp.Succeeded, payments.NoOperation, true, 0},
		"wrong API key":    {psp.Unauthorized, payments.Applied, true, 0},
		"refused at first": {psp.Refused, payments.Applied, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				op := charge()
				b := newBench(op)
				b.provider.execute = answer(c.outcome)
				b.Record = func(_ context.Context, rs []payments.Result) ([]payments.Recorded, error) {
					return []payments.Recorded{c.recorded}, nil
				}
				b.run(t, time.Second)
				log := b.log.String()
				if got := strings.Contains(log, "level=ERROR"); got != c.alarm || b.conflict != c.conflict {
					t.Errorf("alarm: %t, conflicts: %d, log: %s", got, b.conflict, log)
				}
				if c.alarm && (!strings.Contains(log, op.ID.String()) || !strings.Contains(log, op.PaymentID.String())) {
					t.Error(log)
				}
			})
		})
	}
}

// TestFrozenWorkerDoesNotCall: after its lease a claim says nothing, and after a day the PSP has forgotten the key.
func TestFrozenWorkerDoesNotCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(operations(2)...)
		claim := b.Claim
		b.Claim = func(ctx context.Context, limit int, lease time.Duration) ([]payments.Operation, error) {
			claimed, err := claim(ctx, limit, lease)
			if len(claimed) > 0 {
				<-time.After(lease + time.Second) // frozen before it could do anything
			}
			return claimed, err
		}
		b.run(t, time.Minute)
		if calls := b.provider.seen(); len(calls) > 0 || len(b.results) > 0 || strings.Count(b.log.String(), "claimed too long ago") != 2 {
			t.Errorf("%v, %v, %s", calls, b.results, b.log.String())
		}
	})
}

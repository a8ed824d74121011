package idempotency_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

// withoutBackstop drops the primary key, which within a day hides bugs that it cannot hide at
// midnight. Only the lock and the order of the two statements are left.
func withoutBackstop(t *testing.T, d database) database {
	t.Helper()
	mustExec(t, d.owner, `ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey;
		CREATE INDEX ON idempotency_keys (key_hash, day)`)
	return d
}

// For every tenth key, the first worker's connection is killed while it holds the claim.
func TestHundredConcurrentDuplicatesRunOnce(t *testing.T) {
	t.Parallel()
	const keys, duplicates = 50, 100
	d := withoutBackstop(t, newDatabase(t))
	requests, answers := make([]idempotency.Request, keys), make([]chan idempotency.Answer, keys)
	var all sync.WaitGroup
	start := make(chan struct{})
	for k := range keys {
		requests[k], answers[k] = newRequest(), make(chan idempotency.Answer, duplicates)
		var kill sync.Once
		for range duplicates {
			r := again(requests[k])
			all.Go(func() {
				<-start
				killed := false
				a, err := idempotency.Run(context.Background(), d.write, r, retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
					response, err := work(r)(ctx, tx)
					if k%10 == 0 {
						kill.Do(func() {
							killed = true
							_, err = tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
						})
					}
					return response, err
				})
				switch {
				case err == nil:
					answers[k] <- a
				case !killed:
					t.Error(err)
				}
			})
		}
	}
	close(start)
	all.Wait()
	for k, r := range requests {
		close(answers[k])
		last := d.run(t, again(r))
		if n := d.effects(t, r); n != 1 {
			t.Errorf("key %d: worked %d times", k, n)
		}
		firsts := 0
		for a := range answers[k] {
			switch a.State {
			case idempotency.InProgress:
			case idempotency.New, idempotency.Replay:
				if a.State == idempotency.New {
					firsts++
				}
				a.State = last.State
				if diff := cmp.Diff(last, a); diff != "" {
					t.Errorf("key %d: two answers: %s", k, diff)
				}
			default:
				t.Errorf("key %d: an answer is %s", k, a.State)
			}
		}
		if firsts > 1 || firsts == 0 && last.State != idempotency.New {
			t.Errorf("key %d: %d first answers, then %s", k, firsts, last.State)
		}
	}
}

// While one worker commits a batch, the others claim the same keys again and again.
func TestKeysClaimedDuringCommitRunOnce(t *testing.T) {
	t.Parallel()
	d := withoutBackstop(t, newDatabase(t))
	const rounds, keysPerRound = 8, 100
	for range rounds {
		requests := make([]idempotency.Request, keysPerRound)
		for i := range requests {
			requests[i] = newRequest()
		}
		var all sync.WaitGroup
		for worker := range uint64(4) {
			all.Go(func() {
				random := rand.New(rand.NewPCG(worker, 1))
				batch := slices.Clone(requests)
				random.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
				for len(batch) > 0 { // until each of them has its answer
					as, err := idempotency.CommitOnce(context.Background(), d.write, attempt(batch...))
					if err != nil {
						t.Error(err)
						return
					}
					open := batch[:0]
					for i, a := range as {
						if a.State == idempotency.InProgress {
							open = append(open, batch[i])
						}
					}
					batch = open
				}
			})
		}
		all.Wait()
	}
	if keys, effects := d.count(t, "(SELECT DISTINCT key FROM effects) e"), d.count(t, "effects"); keys != rounds*keysPerRound || effects != keys {
		t.Errorf("%d of %d keys were worked on %d times", keys, rounds*keysPerRound, effects)
	}
}

func TestKilledHolderFreesKey(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	holder := begin(t, d.write)
	wantState(t, claim(t, holder, r)[0], idempotency.New)
	if _, err := work(r)(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	wantState(t, d.run(t, again(r)), idempotency.InProgress)
	wantState(t, d.run(t, changed(r)), idempotency.InProgress) // what is not committed cannot be compared
	mustExec(t, d.owner, `SELECT pg_terminate_backend($1)`, holder.Conn().PgConn().PID())
	testenv.Eventually(t, 20*time.Second, func() error {
		if a := d.run(t, again(r)); a.State != idempotency.New {
			return fmt.Errorf("the key is %s", a.State)
		}
		return nil
	})
	if n := d.effects(t, r); n != 1 {
		t.Errorf("worked %d times", n)
	}
}

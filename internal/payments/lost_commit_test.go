package payments_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// through makes b work through a proxy.
func (b *bank) through(t *testing.T, fate func(conn, commit int) pgproxy.Fate) (proxy *pgproxy.Proxy) {
	t.Helper()
	proxy = pgproxy.Start(t, b.owner.Config().ConnString(), fate)
	config := b.DB.(*pgxpool.Pool).Config()
	proxy.Through(&config.ConnConfig.Config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.DB = pool
	return proxy
}

type group = groupcommit.Group[payments.Request, idempotency.Answer]

// grouped commits until stop is called.
func grouped(t *testing.T, commit func(context.Context, []payments.Request) ([]idempotency.Answer, error), o groupcommit.Options) (g *group, stop func()) {
	t.Helper()
	g = groupcommit.New(commit, o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- g.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return g, stop
}

// The second COMMIT of every connection is lost, until there were so many: a thousand times it took
// place and no client was told.
func TestThousandLostCommitsPayOnce(t *testing.T) {
	t.Parallel()
	for fate, lose := range map[pgproxy.Fate]int64{pgproxy.LoseReply: 1000, pgproxy.LoseRequest: 250, pgproxy.Cut: 250} {
		t.Run(fate.String(), func(t *testing.T) {
			t.Parallel()
			b := newBank(t, nil)
			var accounts []uuid.UUID
			for range 16 {
				accounts = append(accounts, b.customer(t, 1_000_000))
			}
			setUp := count(t, b.owner, `SELECT count(*) FROM payments`)
			var lost, transactions atomic.Int64
			b.through(t, func(_, commit int) pgproxy.Fate {
				transactions.Add(1)
				if commit == 2 && lost.Add(1) <= lose {
					return fate
				}
				return pgproxy.Pass
			})
			g, stop := grouped(t, b.Process, groupcommit.Options{})

			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			var unknown atomic.Int64 // callers that a pause of the machine kept from learning the outcome
			var answers sync.Map     // key → what the caller was told
			var callers sync.WaitGroup
			for n := range 32 {
				random := rand.New(rand.NewPCG(uint64(n), 7))
				callers.Go(func() {
					for lost.Load() < lose && !t.Failed() {
						from := random.IntN(len(accounts))
						to := (from + 1 + random.IntN(len(accounts)-1)) % len(accounts)
						r := b.pay(accounts[from], accounts[to], 1+random.Int64N(10))
						a, err := g.Do(ctx, r)
						want := []idempotency.State{idempotency.New}
						for errors.Is(err, idempotency.ErrOutcomeUnknown) || len(want) > 1 && a.State == idempotency.InProgress {
							if err != nil {
								unknown.Add(1)
							}
							want = []idempotency.State{idempotency.New, idempotency.Replay} // it repeats, as a client does
							a, err = g.Do(ctx, r)
						}
						if err != nil || !slices.Contains(want, a.State) || a.Response.Status != 201 || a.RequestID != r.RequestID {
							t.Errorf("answered %s %d, %v", a.State, a.Response.Status, err)
							return
						}
						answers.Store(r.Key, string(a.Response.Body))
					}
				})
			}
			callers.Wait()
			stop()
			if n := unknown.Load(); n > 100 {
				t.Errorf("%d callers were told that the outcome is unknown", n)
			}

			rows, err := b.owner.Query(t.Context(), `SELECT p.idempotency_key, k.body FROM payments p JOIN idempotency_keys k ON k.key = p.idempotency_key`)
			if err != nil {
				t.Fatal(err)
			}
			var key string
			var stored []byte
			made := int64(0)
			if _, err := pgx.ForEachRow(rows, []any{&key, &stored}, func() error {
				if told, ours := answers.LoadAndDelete(key); ours {
					if made++; told != string(stored) {
						t.Errorf("told %s, stored %s", told, stored)
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			answers.Range(func(key, told any) bool {
				t.Errorf("payment %s is lost: %s", key, told)
				return true
			})
			if n := count(t, b.owner, `SELECT count(*) FROM payments`); n != made+setUp {
				t.Errorf("%d payments were made for %d requests", n-setUp, made)
			}
			b.wantBalanced(t)
			t.Logf("%d payments in %d transactions, of which %d lost their COMMIT", made, transactions.Load(), lose)
		})
	}
}

// The network is cut under a COMMIT: its backend keeps the transaction and the key, and no client
// can tell whether COMMIT will arrive.
func TestStalledCommit(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"the backend ends while it is asked about": true, "the backend stays": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, nil)
			to := b.customer(t, 0)
			var commits atomic.Int64
			asked := make(chan struct{}) // closed when the key was found held, twice
			proxy := b.through(t, func(_, _ int) pgproxy.Fate {
				switch commits.Add(1) {
				case 1:
					return pgproxy.Stall
				case 3:
					close(asked)
				}
				return pgproxy.Pass
			})
			if ends {
				go func() { <-asked; proxy.Release() }()
			}

			r := b.pay(b.system, to, 7)
			as, err := b.Process(t.Context(), []payments.Request{r})
			if ends && (err != nil || as[0].State != idempotency.New || as[0].RequestID != r.RequestID) {
				t.Errorf("answered %v, %v", as, err)
			}
			if !ends {
				if !errors.Is(err, idempotency.ErrOutcomeUnknown) {
					t.Errorf("answered %v, %v", as, err)
				}
				proxy.Release()
			}

			r.RequestID = uuid.NewString()
			var repeat idempotency.Answer
			testenv.Eventually(t, 10*time.Second, func() error { // until the backend has rolled back
				if repeat = b.process(t, r)[0]; repeat.State == idempotency.InProgress {
					return errors.New("the key is held")
				}
				return nil
			})
			if want := map[bool]idempotency.State{true: idempotency.Replay, false: idempotency.New}[ends]; repeat.State != want {
				t.Errorf("the repeat is %s, want %s", repeat.State, want)
			}
			if balance := b.balance(t, to); balance != 7 {
				t.Errorf("paid %d, want 7", balance)
			}
			b.wantBalanced(t)
		})
	}
}

func TestOutcomeUnknownForWholeBatch(t *testing.T) {
	t.Parallel()
	for fate, found := range map[pgproxy.Fate]idempotency.State{pgproxy.LoseReply: idempotency.Replay, pgproxy.LoseRequest: idempotency.New} {
		t.Run(fate.String(), func(t *testing.T) {
			t.Parallel()
			const callers = 10
			b := newBank(t, nil)
			to := b.customer(t, 0)
			var away atomic.Bool
			away.Store(true)
			b.through(t, func(int, int) pgproxy.Fate {
				if away.Load() {
					return fate
				}
				return pgproxy.Pass
			})
			var mu sync.Mutex
			var sizes []int
			g, _ := grouped(t, b.Process, groupcommit.Options{Committers: 1, OnBatch: func(b groupcommit.Batch) {
				mu.Lock()
				defer mu.Unlock()
				sizes = append(sizes, b.Size)
			}})
			var rs [callers]payments.Request
			var all sync.WaitGroup
			for i := range rs {
				rs[i] = b.pay(b.system, to, 1)
				all.Go(func() {
					if a, err := g.Do(soon(t), rs[i]); !errors.Is(err, idempotency.ErrOutcomeUnknown) {
						t.Errorf("answered %s %d, %v", a.State, a.Response.Status, err)
					}
				})
			}
			all.Wait()
			if len(sizes) > 3 {
				t.Errorf("commit was called for batches of %v: an unknown outcome is no member's fault", sizes)
			}
			away.Store(false)
			for _, r := range rs {
				all.Go(func() {
					r.RequestID = uuid.NewString()
					ctx := soon(t)
					a, err := g.Do(ctx, r)
					for err == nil && a.State == idempotency.InProgress { // until the server notices that the connection is gone
						a, err = g.Do(ctx, r)
					}
					if err != nil || a.State != found || a.Response.Status != 201 {
						t.Errorf("the repeat: %s %d, %v", a.State, a.Response.Status, err)
					}
				})
			}
			all.Wait()
			if balance := b.balance(t, to); balance != callers {
				t.Errorf("%d were paid %d times", callers, balance)
			}
			b.wantBalanced(t)
		})
	}
}

func TestStatementsThroughProxyAreConstant(t *testing.T) {
	t.Parallel()
	var counter statements
	b := newBank(t, &counter)
	from, to := b.customer(t, 1_000_000), b.customer(t, 0)
	begun, gate, costs := make(chan struct{}), make(chan struct{}), map[int]int64{}
	g, stop := grouped(t, func(ctx context.Context, rs []payments.Request) ([]idempotency.Answer, error) {
		begun <- struct{}{}
		<-gate
		before := counter.Load()
		as, err := b.Process(ctx, rs)
		costs[len(rs)] = counter.Load() - before
		return as, err
	}, groupcommit.Options{Committers: 1})
	var callers sync.WaitGroup
	send := func(n int) {
		for range n {
			callers.Go(func() {
				if a, err := g.Do(soon(t), b.pay(from, to, 1)); err != nil || a.Response.Status != 201 {
					t.Errorf("answered %d, %v", a.Response.Status, err)
				}
			})
		}
	}
	send(1)
	<-begun // none waiting would also be true before the first has come
	for _, n := range []int{10, 100} {
		send(n)
		testenv.Eventually(t, 10*time.Second, waiting(g, n))
		gate <- struct{}{} // the one before goes on, and the next one is what piled up
		<-begun
	}
	gate <- struct{}{}
	callers.Wait()
	stop()
	// Begin, three to claim, three to load, three to save, the events, the responses, commit.
	for _, size := range []int{1, 10, 100} {
		if costs[size] != 13 {
			t.Errorf("a batch of %d costs %d statements: %v", size, costs[size], costs)
		}
	}
}

func waiting(g *group, n int) func() error {
	return func() error {
		if got := g.Waiting(); got != n {
			return errors.New("not as many are waiting")
		}
		return nil
	}
}

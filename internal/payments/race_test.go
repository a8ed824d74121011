package payments_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// Workers send overlapping batches for the same few accounts, each request to two workers.
func TestBooksBalanceOnHotAccounts(t *testing.T) {
	t.Parallel()
	const workers, batches, batch = 6, 12, 20
	var counter statements
	b := newBank(t, &counter)
	accounts := []uuid.UUID{b.system}
	for range 5 {
		accounts = append(accounts, b.customer(t, 500))
	}
	var executed, replayed, busy atomic.Int64
	var all sync.WaitGroup
	for half := range workers / 2 {
		random := rand.New(rand.NewPCG(uint64(half), 3))
		requests := make([]payments.Request, batches*batch)
		for i := range requests {
			requests[i] = b.randomRequest(random, accounts)
		}
		for range 2 {
			all.Go(func() {
				ctx := soon(t)
				for i := range batches {
					as, err := b.Process(ctx, requests[i*batch:(i+1)*batch])
					if err != nil {
						t.Error(err)
					}
					for _, a := range as {
						switch a.State {
						case idempotency.New:
							executed.Add(1)
						case idempotency.Replay:
							replayed.Add(1)
						case idempotency.InProgress:
							busy.Add(1)
						default:
							t.Errorf("an answer is %s", a.State)
						}
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("executed %d, replayed %d, in progress %d", executed.Load(), replayed.Load(), busy.Load())
	if want := int64(workers / 2 * batches * batch); executed.Load() != want {
		t.Errorf("executed %d of %d requests", executed.Load(), want)
	}
	setUp := int64(1 + 5 + 5) // the system account, five customers and their money
	if n := count(t, b.owner, `SELECT count(*) FROM idempotency_keys`); n != executed.Load()+setUp {
		t.Errorf("%d keys for %d requests", n, executed.Load()+setUp)
	}
	for kind, sql := range map[string]string{
		"completed": `SELECT count(*) FROM payments WHERE status = 'completed'`, "declined": `SELECT count(*) FROM payments WHERE status = 'declined'`,
		"refused": `SELECT count(*) FROM idempotency_keys WHERE status = 422`,
	} {
		if count(t, b.owner, sql) == 0 {
			t.Errorf("no payment was %s: the test says little", kind)
		}
	}
	if n := counter.deadlocks.Load(); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	b.wantBalanced(t)
}

func (b *bank) randomRequest(random *rand.Rand, accounts []uuid.UUID) payments.Request {
	if random.IntN(20) == 0 {
		return b.request(payments.CreateAccount{Kind: payments.Customer, Currency: "USD"})
	}
	from := random.IntN(len(accounts))
	to := (from + 1 + random.IntN(len(accounts)-1)) % len(accounts)
	r := b.pay(accounts[from], accounts[to], 1+random.Int64N(300))
	if random.IntN(20) == 0 {
		c := r.Command.(payments.CreatePayment)
		c.DestinationAccount = uuid.New()
		r.Command = c
	}
	return r
}

// Two batches open the same accounts in opposite orders.
func TestSystemAccountRace(t *testing.T) {
	t.Parallel()
	const rounds, currencies = 10, 100
	var counter statements
	b := newBank(t, &counter)
	var opened, refused atomic.Int64
	for range rounds {
		b.tenant = uuid.New()
		var race sync.WaitGroup
		for worker := range 2 {
			rs := make([]payments.Request, currencies)
			for i := range rs {
				rs[i] = b.request(payments.CreateAccount{Kind: payments.System, Currency: string([]byte{'X', 'A' + byte(i/10), 'A' + byte(i%10)})})
			}
			if worker == 1 {
				slices.Reverse(rs)
			}
			race.Go(func() {
				as, err := b.Process(soon(t), rs)
				if err != nil {
					t.Error(err)
				}
				for _, a := range as {
					switch a.Response.Status {
					case 201:
						opened.Add(1)
					case 422:
						refused.Add(1)
					}
				}
			})
		}
		race.Wait()
	}
	if opened.Load() != rounds*currencies || refused.Load() != rounds*currencies {
		t.Errorf("%d were opened, %d refused", opened.Load(), refused.Load())
	}
	if n := counter.deadlocks.Load(); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	b.wantBalanced(t)
}

func TestStatementsPerBatchAreConstant(t *testing.T) {
	t.Parallel()
	var counter statements
	b := newBank(t, &counter)
	from, to := b.customer(t, 1_000_000), b.customer(t, 0)
	var counts []int64
	for _, n := range []int{1, 100} {
		var rs []payments.Request
		for range n {
			rs = append(rs, b.pay(from, to, 1), b.pay(to, from, 1_000_000),
				b.request(payments.CreateAccount{Kind: payments.Customer, Currency: "USD"}), b.request(payments.CreateAccount{Kind: payments.System, Currency: "USD"}))
		}
		before := counter.Load()
		tx, err := b.DB.BeginTx(t.Context(), pgx.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		begun := counter.Load()
		outcomes, err := payments.Execute(t.Context(), tx, rs)
		if err != nil || len(outcomes) != len(rs) {
			t.Fatalf("%d outcomes, %v", len(outcomes), err)
		}
		executed := counter.Load()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range rs {
			rs[i].Key = uuid.NewString()
		}
		whole := counter.Load()
		b.process(t, rs...)
		counts = append(counts, executed-begun, counter.Load()-whole)
		if begun-before != 1 {
			t.Errorf("%d statements to begin", begun-before)
		}
	}
	// Four to load, four to save; with begin, three to claim, the events, the responses and commit.
	if counts[0] > 8 || counts[1] > 15 || counts[0] != counts[2] || counts[1] != counts[3] {
		t.Errorf("Execute and Process of 4 and 400 requests: %d statements", counts)
	}
}

// statements counts what is sent to the server, one by one or in batches, and what it ended with a
// deadlock.
type statements struct {
	atomic.Int64
	deadlocks atomic.Int64
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.Add(1)
	return ctx
}
func (s *statements) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s.note(data.Err)
}
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { s.Add(1) }
func (s *statements) TraceBatchEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	s.note(data.Err)
}

func (s *statements) note(err error) {
	var e *pgconn.PgError
	if errors.As(err, &e) && e.Code == "40P01" {
		s.deadlocks.Add(1)
	}
}

package payments_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// books are what a simple model says of the payments and accounts of several tenants.
type books struct {
	tenants  []*bank
	accounts map[uuid.UUID]*accountModel
	payments map[uuid.UUID]*paymentModel
	done     []exchange

	clearing   map[uuid.UUID]uuid.UUID // by tenant
	refunds    map[uuid.UUID]int64     // to cards: their amounts
	operations map[uuid.UUID]*operationModel
}

type accountModel struct {
	Balance, Held int64
	tenant        uuid.UUID
	system        bool
}

type paymentModel struct {
	Status                              payments.Status
	Captured, Refunded, Amount, Version int64
	Refunding                           int64
	card                                bool
	tenant, source, destination         uuid.UUID
	expires                             time.Time
}

// exchange is a request that was answered.
type exchange struct {
	by      *bank
	request payments.Request
	answer  idempotency.Answer
}

// What happens at least once in each life.
var (
	lifeCodes = []payments.Code{
		"", payments.UnknownPayment, payments.InvalidState, payments.VersionMismatch, payments.InsufficientFunds,
		payments.AuthorizationExpired, payments.AmountExceedsAuthorized, payments.AmountExceedsCaptured,
		payments.UnknownAccount, payments.CardsNotEnabled, payments.SameAccount,
	}
	lifeOutcomes = []payments.Recorded{
		payments.Applied, payments.Repeated, payments.Conflict, payments.Stale, payments.NoOperation,
	}
)

// Random commands of several tenants, in batches of random size, some of them repeats, with sweeps
// between: the database holds what the model does.
func TestLifeAgreesWithModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 5))
			m := newBooks(t, 3)
			seen, outcomes := map[payments.Code]int{}, map[payments.Recorded]int{}
			missing := func() (missing []any) {
				for _, code := range lifeCodes {
					if seen[code] == 0 {
						missing = append(missing, code)
					}
				}
				for _, what := range lifeOutcomes {
					if outcomes[what] == 0 {
						missing = append(missing, what)
					}
				}
				return missing
			}

			// Identifiers and the clock differ from run to run, so it goes on until all has happened.
			for n := 0; n < 50 || len(missing()) > 0; n++ {
				if n == 1000 {
					t.Fatalf("%v never happened: the test says little", missing())
				}
				m.batch(t, random, seen)
				if random.IntN(3) == 0 {
					m.sweep(t)
				}
				m.claim(t, random)
				m.record(t, random, outcomes)
				m.wantSame(t)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			m.tenants[0].wantBalanced(t)
			t.Log(seen, outcomes)
		})
	}
}

func newBooks(t *testing.T, tenants int) *books {
	m := &books{accounts: map[uuid.UUID]*accountModel{}, payments: map[uuid.UUID]*paymentModel{},
		clearing: map[uuid.UUID]uuid.UUID{}, refunds: map[uuid.UUID]int64{}, operations: map[uuid.UUID]*operationModel{}}
	first := newBank(t, nil)
	for i := range tenants {
		b := first
		if i > 0 {
			b = &bank{Processor: first.Processor, owner: first.owner, tenant: uuid.New(), client: uuid.New()}
			b.system = b.open(t, payments.System, "USD")
		}
		m.tenants = append(m.tenants, b)
		m.accounts[b.system] = &accountModel{tenant: b.tenant, system: true}
		if i < tenants-1 { // the last one takes no cards
			m.clearing[b.tenant] = b.open(t, payments.Clearing, "USD")
			m.accounts[m.clearing[b.tenant]] = &accountModel{tenant: b.tenant, system: true}
		}
		for range 3 {
			m.accounts[b.customer(t, 500)] = &accountModel{tenant: b.tenant, Balance: 500}
			m.accounts[b.system].Balance -= 500
		}
	}
	return m
}

// batch processes random commands and compares each answer with the model's.
func (m *books) batch(t *testing.T, random *rand.Rand, seen map[payments.Code]int) {
	t.Helper()
	var sent []exchange
	var rs []payments.Request
	for range 1 + random.IntN(40) {
		b := pick(random, m.tenants...)
		e := exchange{by: b, request: b.request(m.command(random, b))}
		if len(m.done) > 0 && random.IntN(6) == 0 {
			e = pick(random, m.done...)
			e.request.RequestID = uuid.NewString()
		}
		sent, rs = append(sent, e), append(rs, e.request)
	}

	as := m.tenants[0].process(t, rs...)
	ended := m.tenants[0].now(t)
	for i, a := range as {
		e := sent[i]
		if e.answer.Response.Status != 0 {
			if a.State != idempotency.Replay || !cmp.Equal(a.Response, e.answer.Response) {
				t.Errorf("the repeat is answered %s %s, not %s", a.State, a.Response.Body, e.answer.Response.Body)
			}
			continue
		}
		if a.State != idempotency.New {
			t.Fatalf("answered %s", a.State)
		}

		// A payment is dated by the claim, a later command when its payment is locked, a little later.
		got, at := codeOf(t, a), a.Date.Truncate(time.Millisecond)
		if got == payments.AuthorizationExpired {
			at = ended
		}
		code := m.expect(e.request.Command, e.by.tenant, at, func() payments.Payment { return decode[payments.Payment](t, a) })
		seen[code]++
		if got != code {
			t.Errorf("%T %+v is answered %q, want %q: %s", e.request.Command, e.request.Command, got, code, a.Response.Body)
		}
		e.answer = a
		m.done = append(m.done, e)
	}
}

func codeOf(t *testing.T, a idempotency.Answer) payments.Code {
	t.Helper()
	switch a.Response.Status {
	case 402:
		return payments.InsufficientFunds
	case 422:
		return decode[payments.Refusal](t, a).Code
	}
	return ""
}

func (m *books) command(random *rand.Rand, b *bank) payments.Command {
	known := inOrder(m.payments)
	if len(known) == 0 || random.IntN(3) == 0 {
		accounts := inOrder(m.accounts)
		if random.IntN(10) > 0 { // mostly its own
			accounts = slices.DeleteFunc(accounts, func(id uuid.UUID) bool { return m.accounts[id].tenant != b.tenant })
		}
		random.Shuffle(len(accounts), func(i, j int) { accounts[i], accounts[j] = accounts[j], accounts[i] })
		if random.IntN(3) == 0 {
			return payments.CreatePayment{AmountMinor: 1 + random.Int64N(200), Currency: "USD", DestinationAccount: accounts[0], Card: "tok"}
		}
		return payments.CreatePayment{
			AmountMinor: pick(random, 1+random.Int64N(200), 450), Currency: "USD", SourceAccount: accounts[0], DestinationAccount: accounts[1], MayFund: true,
			Authorization: pick(random, 0, time.Hour, time.Hour, 5*time.Millisecond),
		}
	}

	if random.IntN(10) > 0 {
		known = slices.DeleteFunc(known, func(id uuid.UUID) bool { return m.payments[id].tenant != b.tenant })
	}
	target := payments.Target{PaymentID: uuid.New()}
	if len(known) > 0 {
		recent := known[max(0, len(known)-20):]
		target.PaymentID = pick(random, pick(random, recent, known)...)
	}
	if random.IntN(4) == 0 {
		target.IfVersion = 1 + random.Int64N(3)
	}
	amount := pick(random, 0, 1, 1+random.Int64N(250), 400)
	return pick[payments.Command](random, payments.CapturePayment{Target: target, AmountMinor: amount}, payments.CancelPayment{Target: target},
		payments.RefundPayment{Target: target, AmountMinor: amount}, payments.RefundPayment{Target: target, AmountMinor: amount})
}

// expect tells the rules once more, and changes the model. made is the payment that was answered.
func (m *books) expect(c payments.Command, tenant uuid.UUID, at time.Time, made func() payments.Payment) payments.Code {
	if c, ok := c.(payments.CreatePayment); ok && c.Card != "" {
		return m.expectCharge(c, tenant, made)
	}
	if c, ok := c.(payments.CreatePayment); ok {
		from, to := m.accounts[c.SourceAccount], m.accounts[c.DestinationAccount]
		if from.tenant != tenant || to.tenant != tenant {
			return payments.UnknownAccount
		}
		p := &paymentModel{tenant: tenant, Amount: c.AmountMinor, Version: 1, source: c.SourceAccount, destination: c.DestinationAccount}
		m.payments[made().ID] = p
		switch {
		case !from.system && from.Balance-from.Held < c.AmountMinor:
			p.Status = payments.Declined
			return payments.InsufficientFunds
		case c.Authorization > 0:
			p.Status, p.expires = payments.Authorized, at.Add(c.Authorization)
			from.Held += p.Amount
		default:
			p.Status, p.Captured = payments.Completed, p.Amount
			from.Balance, to.Balance = from.Balance-p.Amount, to.Balance+p.Amount
		}
		return ""
	}

	target := targetOf(c)
	p := m.payments[target.PaymentID]
	if p == nil || p.tenant != tenant {
		return payments.UnknownPayment
	}
	if target.IfVersion != 0 && target.IfVersion != p.Version {
		return payments.VersionMismatch
	}
	from, to := m.accounts[p.source], m.accounts[p.destination]
	refund, isRefund := c.(payments.RefundPayment)
	over := p.Status == payments.Expired || p.Status == payments.Authorized && !at.Before(p.expires)
	switch {
	case over && !isRefund:
		return payments.AuthorizationExpired
	case isRefund != (p.Status == payments.Completed), !isRefund && p.Status != payments.Authorized:
		return payments.InvalidState
	}

	switch c := c.(type) {
	case payments.CapturePayment:
		amount := c.AmountMinor
		if amount == 0 {
			amount = p.Amount
		}
		if amount > p.Amount {
			return payments.AmountExceedsAuthorized
		}
		p.Status, p.Captured = payments.Completed, amount
		from.Held -= p.Amount
		from.Balance, to.Balance = from.Balance-amount, to.Balance+amount
	case payments.CancelPayment:
		p.Status = payments.Canceled
		from.Held -= p.Amount
	default:
		left := p.Captured - p.Refunded - p.Refunding
		amount := refund.AmountMinor
		if amount == 0 {
			amount = left
		}
		if left == 0 || amount > left {
			return payments.AmountExceedsCaptured
		}
		if p.Version++; !to.system && to.Balance-to.Held < amount {
			return payments.InsufficientFunds
		}
		if p.card {
			m.refunds[made().ID] = amount
			p.Refunding += amount
			to.Held += amount
			return ""
		}
		p.Refunded += amount
		from.Balance, to.Balance = from.Balance+amount, to.Balance-amount
		return ""
	}
	p.Version++
	return ""
}

func targetOf(c payments.Command) payments.Target {
	switch c := c.(type) {
	case payments.CapturePayment:
		return c.Target
	case payments.CancelPayment:
		return c.Target
	case payments.RefundPayment:
		return c.Target
	}
	return payments.Target{}
}

// sweep releases what has expired: all that was over when it began, and nothing that was not over
// when it ended.
func (m *books) sweep(t *testing.T) {
	t.Helper()
	b := m.tenants[0]
	began := b.now(t)
	for n := 1; n > 0; {
		var err error
		if n, err = b.ExpireBatch(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
	}
	ended := b.now(t)

	for id, p := range m.payments {
		if p.Status != payments.Authorized || p.expires.After(ended) {
			continue
		}
		expired := count(t, b.owner, `SELECT count(*) FROM payments WHERE id = $1 AND status = 'expired'`, id) == 1
		if !expired && !p.expires.After(began) {
			t.Errorf("%s was over at %s, and the sweep of %s left it", id, p.expires, began)
		}
		if expired {
			p.Status, p.Version = payments.Expired, p.Version+1
			m.accounts[p.source].Held -= p.Amount
		}
	}
}

func (b *bank) now(t *testing.T) (now time.Time) {
	t.Helper()
	if err := b.owner.QueryRow(context.Background(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}

// wantSame compares the tables with the model.
func (m *books) wantSame(t *testing.T) {
	t.Helper()
	owner := m.tenants[0].owner
	want, got := map[uuid.UUID]any{}, map[uuid.UUID]any{}
	for id, a := range m.accounts {
		want[id] = [2]int64{a.Balance, a.Held}
	}
	for id, p := range m.payments {
		want[id] = [5]any{p.Status, p.Captured, p.Refunded, p.Refunding, p.Version}
	}

	rows, err := owner.Query(t.Context(), `SELECT id, balance_minor, held_minor FROM accounts`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id uuid.UUID
		var a [2]int64
		if err := rows.Scan(&id, &a[0], &a[1]); err != nil {
			t.Fatal(err)
		}
		got[id] = a
	}
	rows, err = owner.Query(t.Context(), `SELECT id, status, CASE status WHEN 'completed' THEN amount_minor - released_minor ELSE 0 END, refunded_minor, refunding_minor, version FROM payments WHERE amount_minor < 500`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id uuid.UUID
		var status payments.Status
		var captured, refunded, refunding, version int64
		if err := rows.Scan(&id, &status, &captured, &refunded, &refunding, &version); err != nil {
			t.Fatal(err)
		}
		got[id] = [5]any{status, captured, refunded, refunding, version}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// inOrder returns the keys of m, the oldest first: they are UUIDv7.
func inOrder[V any](m map[uuid.UUID]V) []uuid.UUID {
	return slices.SortedFunc(maps.Keys(m), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
}

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

package payments_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// The part of the model of TestLifeAgreesWithModel that is about cards.

type operationModel struct {
	payment uuid.UUID
	refund  *uuid.UUID
	Amount  int64
	State   payments.OperationState
	Tries   int
	claim   int64 // token of the last claim; 0: none, or it has ended
	due     bool
}

func (m *books) expectCharge(c payments.CreatePayment, tenant uuid.UUID, made func() payments.Payment) payments.Code {
	clearing, enabled := m.clearing[tenant]
	switch {
	case !enabled:
		return payments.CardsNotEnabled
	case m.accounts[c.DestinationAccount].tenant != tenant:
		return payments.UnknownAccount
	case c.DestinationAccount == clearing:
		return payments.SameAccount
	}
	m.payments[made().ID] = &paymentModel{
		Status: payments.Processing, Amount: c.AmountMinor, Version: 1, card: true,
		tenant: tenant, source: clearing, destination: c.DestinationAccount,
	}
	return ""
}

// claim claims what is due, as a worker that lives for its lease, or dies at once.
func (m *books) claim(t *testing.T, random *rand.Rand) {
	t.Helper()
	m.learn(t)
	due := 0
	for _, o := range m.operations {
		if o.due {
			due++
		}
	}
	limit, lease := random.IntN(20), pick(random, time.Hour, time.Hour, 0)
	claimed, err := m.tenants[0].ClaimOperations(t.Context(), limit, lease)
	if err != nil || len(claimed) != min(limit, due) {
		t.Errorf("claimed %d of %d, %v", len(claimed), due, err)
	}
	for _, got := range claimed {
		o := m.operations[got.ID]
		if !o.due || got.State != o.State || got.Tries != o.Tries+1 || got.Token <= o.claim || got.AmountMinor != o.Amount ||
			(got.Kind == payments.RefundCharge) != (o.refund != nil) || !cmp.Equal(got.RefundID, o.refund) || got.PaymentID != o.payment ||
			got.TenantID != m.payments[o.payment].tenant || (o.refund != nil) != (got.ChargeReference == "ch") || (got.CardToken == "tok") != (o.refund == nil) {
			t.Errorf("claimed %+v of %+v", got, o)
		}
		o.State, o.Tries, o.claim, o.due = payments.Unknown, got.Tries, got.Token, lease == 0
	}
}

// learn adds the operations that are new.
func (m *books) learn(t *testing.T) {
	t.Helper()
	rows, err := m.tenants[0].owner.Query(t.Context(), `SELECT id, payment_id, refund_id FROM psp_operations`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id uuid.UUID
		o := &operationModel{State: payments.Pending, due: true}
		if err := rows.Scan(&id, &o.payment, &o.refund); err != nil {
			t.Fatal(err)
		}
		if m.operations[id] != nil {
			continue
		}
		o.Amount = m.payments[o.payment].Amount
		if o.refund != nil {
			o.Amount = m.refunds[*o.refund]
		}
		m.operations[id] = o
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// record records results of any kind, right and wrong, late and repeated, in random order.
func (m *books) record(t *testing.T, random *rand.Rand, outcomes map[payments.Recorded]int) {
	t.Helper()
	m.learn(t)
	ids := inOrder(m.operations)
	ids = append(ids[max(0, len(ids)-30):], uuid.New())
	var results []payments.Result
	for range random.IntN(12) {
		r := payments.Result{OperationID: pick(random, ids...), Reference: "ch", State: pick(random, payments.Succeeded, payments.Succeeded, payments.Succeeded,
			payments.OperationDeclined, payments.OperationFailed, payments.Unknown, payments.Unknown, payments.Unknown)}
		if o := m.operations[r.OperationID]; o != nil {
			r.Token = pick(random, o.claim, o.claim, o.claim-1, o.claim+100, 0)
			r.AmountMinor, r.Currency = pick(random, 0, o.Amount, o.Amount, o.Amount+1), pick(random, "USD", "USD", "USD", "USD", "EUR")
		}
		if r.State == payments.Unknown {
			r.RetryAfter, r.AskOperator = pick(random, 0, time.Hour), random.IntN(4) == 0
		}
		results = append(results, r)
		if random.IntN(4) == 0 {
			results = append(results, pick(random, results...))
		}
	}

	var want []payments.Recorded
	for _, r := range results {
		want = append(want, m.expectRecorded(r))
		outcomes[want[len(want)-1]]++
	}
	recorded, err := m.tenants[0].Record(t.Context(), results)
	if err != nil || len(results) > 0 && !cmp.Equal(want, recorded) {
		t.Errorf("%+v were recorded as %v, want %v: %v", results, recorded, want, err)
	}
}

// expectRecorded tells the rules once more, and changes the model.
func (m *books) expectRecorded(r payments.Result) payments.Recorded {
	o := m.operations[r.OperationID]
	if o == nil {
		return payments.NoOperation
	}
	ended := o.State != payments.Pending && o.State != payments.Unknown
	wrong := r.State == payments.Succeeded && r.AmountMinor != 0 && (r.AmountMinor != o.Amount || r.Currency != "USD")
	switch {
	case ended && r.State == payments.Unknown:
		return payments.Stale
	case ended && (r.State != o.State || wrong):
		return payments.Conflict
	case ended:
		return payments.Repeated
	case wrong:
		o.State, o.claim, o.due, o.Tries = payments.Unknown, 0, false, max(o.Tries, 1)
		return payments.Conflict
	case r.State == payments.Unknown && r.Token == 0, r.State != payments.Succeeded && r.Token != 0 && (o.claim == 0 || r.Token != o.claim):
		return payments.Stale
	case r.State == payments.Unknown:
		o.due = r.RetryAfter == 0 && !r.AskOperator
		if r.AskOperator {
			o.claim = 0
		}
		return payments.Applied
	}

	o.State, o.due = r.State, false
	p := m.payments[o.payment]
	from, to := m.accounts[p.source], m.accounts[p.destination]
	p.Version++
	if o.refund == nil {
		switch r.State {
		case payments.Succeeded:
			p.Status, p.Captured = payments.Completed, p.Amount
			from.Balance, to.Balance = from.Balance-p.Amount, to.Balance+p.Amount
		case payments.OperationDeclined:
			p.Status = payments.Declined
		default:
			p.Status = payments.Failed
		}
		return payments.Applied
	}
	p.Refunding -= o.Amount
	to.Held -= o.Amount
	if r.State == payments.Succeeded {
		p.Refunded += o.Amount
		from.Balance, to.Balance = from.Balance+o.Amount, to.Balance-o.Amount
	}
	return payments.Applied
}

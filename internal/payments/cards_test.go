package payments_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

func (b *bank) byCard(to uuid.UUID, amount int64) payments.Request {
	return b.request(payments.CreatePayment{AmountMinor: amount, Currency: "USD", DestinationAccount: to, Card: "tok_visa"})
}

func (b *bank) claimed(t *testing.T, n int) []payments.Operation {
	t.Helper()
	claimed, err := b.ClaimOperations(t.Context(), 100, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if len(claimed) != n {
		t.Fatalf("%d operations are due, not %d", len(claimed), n)
	}
	return claimed
}

func (b *bank) record(t *testing.T, want payments.Recorded, r payments.Result) {
	t.Helper()
	recorded, err := b.Record(t.Context(), []payments.Result{r})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]payments.Recorded{want}, recorded); diff != "" {
		t.Error(diff)
	}
}

// A card is charged, the payment completes, a part goes back.
func TestPaymentByCard(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	clearing, shop := b.open(t, payments.Clearing, "USD"), b.customer(t, 0)

	p := decode[payments.Payment](t, b.process(t, b.byCard(shop, 100))[0])
	if p.Status != payments.Processing || p.SourceAccount != clearing || p.PaymentMethod == nil {
		t.Fatalf("%+v", p)
	}
	o := b.claimed(t, 1)[0]
	b.claimed(t, 0) // it has a lease
	if o.Kind != payments.Charge || o.State != payments.Pending || o.CardToken != "tok_visa" || o.AmountMinor != 100 {
		t.Errorf("%+v", o)
	}

	paid := payments.Result{OperationID: o.ID, State: payments.Succeeded, AmountMinor: 100, Currency: "USD", Reference: "ch_1"}
	b.record(t, payments.Stale, payments.Result{OperationID: o.ID, State: payments.Unknown, Token: o.Token - 1})
	b.record(t, payments.Applied, payments.Result{OperationID: o.ID, State: payments.Unknown, Token: o.Token, Error: "timeout"})
	o = b.claimed(t, 1)[0]
	if o.State != payments.Unknown || o.Tries != 2 {
		t.Errorf("%+v", o)
	}
	b.record(t, payments.Applied, paid)
	b.record(t, payments.Repeated, paid)
	b.record(t, payments.Conflict, payments.Result{OperationID: o.ID, State: payments.OperationDeclined})
	b.record(t, payments.NoOperation, payments.Result{OperationID: uuid.New(), State: payments.Succeeded})
	if n, m := b.balance(t, clearing), b.balance(t, shop); n != -100 || m != 100 {
		t.Errorf("the accounts have %d and %d", n, m)
	}

	r := decode[payments.Refund](t, b.process(t, b.request(payments.RefundPayment{Target: payments.Target{PaymentID: p.ID}, AmountMinor: 30}))[0])
	if r.Status != payments.Processing || r.SourceAccount != shop {
		t.Errorf("%+v", r)
	}
	wantStatus(t, b.process(t, b.request(payments.RefundPayment{Target: payments.Target{PaymentID: p.ID}, AmountMinor: 71}))[0], 422)
	o = b.claimed(t, 1)[0]
	if o.Kind != payments.RefundCharge || o.ChargeReference != "ch_1" || *o.RefundID != r.ID {
		t.Errorf("%+v", o)
	}
	b.record(t, payments.Applied, payments.Result{OperationID: o.ID, State: payments.Succeeded, AmountMinor: 30, Currency: "USD", Reference: "re_1"})
	if n, m := b.balance(t, clearing), b.balance(t, shop); n != -70 || m != 70 {
		t.Errorf("the accounts have %d and %d", n, m)
	}
	b.wantBalanced(t)
}

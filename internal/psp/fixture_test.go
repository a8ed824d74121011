package psp_test

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
)

// charge and refund are operations as they are claimed for the first time.
func charge() payments.Operation {
	return payments.Operation{
		ID: uuid.Must(uuid.NewV7()), PaymentID: uuid.New(), Kind: payments.Charge, AmountMinor: 2500, Currency: "USD",
		CardToken: "tok_visa", State: payments.Pending, Tries: 1, Token: 1, CreatedAt: time.Now(),
	}
}

func refund() payments.Operation {
	o, id := charge(), uuid.New()
	o.Kind, o.CardToken, o.RefundID, o.ChargeReference = payments.RefundCharge, "", &id, "ch_1"
	return o
}

// provider answers as its functions say, and notes what it was asked.
type provider struct {
	execute func(context.Context, payments.Operation) psp.Answer
	find    func(context.Context, payments.Operation) psp.Answer

	mu    sync.Mutex
	calls []string
}

func (p *provider) called(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, what)
}

func (p *provider) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.calls...)
}

func (p *provider) Charge(ctx context.Context, op payments.Operation) psp.Answer {
	p.called("charge")
	return p.execute(ctx, op)
}

func (p *provider) Refund(ctx context.Context, op payments.Operation) psp.Answer {
	p.called("refund")
	return p.execute(ctx, op)
}

func (p *provider) Find(ctx context.Context, op payments.Operation) psp.Answer {
	p.called("find")
	return p.find(ctx, op)
}

func (p *provider) List(context.Context, payments.OperationKind, string) ([]psp.Entry, bool, error) {
	return nil, false, nil
}

func answer(o psp.Outcome) func(context.Context, payments.Operation) psp.Answer {
	return func(_ context.Context, op payments.Operation) psp.Answer {
		a := psp.Answer{Outcome: o, Detail: "as the test says"}
		if o == psp.Succeeded {
			a.Entry = psp.Entry{Reference: "ch_1", AmountMinor: op.AmountMinor, Currency: op.Currency}
		}
		return a
	}
}

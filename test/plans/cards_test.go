package plans

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// charge pays by card and refunds, a hundred at a time, as the API and the worker do together.
func (c caller) charge(t *testing.T, accounts []uuid.UUID) {
	t.Helper()
	c.process(t, payments.CreateAccount{Kind: payments.Clearing, Currency: "USD"})
	var charges, refunds []payments.Command
	for i := range 100 {
		charges = append(charges, payments.CreatePayment{AmountMinor: 10, Currency: "USD", DestinationAccount: accounts[i], Card: "tok"})
	}
	paid := c.process(t, charges...)
	for _, id := range paid {
		refunds = append(refunds, payments.RefundPayment{Target: payments.Target{PaymentID: id}})
	}

	worker := &payments.Processor{DB: c.open(t, "worker", c.sent["worker"].trace)}
	c.settle(t, worker, false)
	c.succeed(t, refunds)
	c.settle(t, worker, true)
}

// settle records what the PSP did with everything that is due: some of it while psql keeps an operation
// locked.
func (c caller) settle(t *testing.T, worker *payments.Processor, kept bool) {
	t.Helper()
	operations, err := worker.ClaimOperations(t.Context(), 100, time.Minute)
	if err != nil || len(operations) != 100 {
		t.Fatalf("claimed %d, %v", len(operations), err)
	}
	var unknown, results []payments.Result
	for _, o := range operations {
		unknown = append(unknown, payments.Result{OperationID: o.ID, Token: o.Token, State: payments.Unknown, RetryAfter: time.Hour})
		results = append(results, payments.Result{OperationID: o.ID, State: payments.Succeeded, AmountMinor: 10, Currency: "USD", Reference: "x"})
	}
	c.record(t, worker, unknown)
	if kept {
		tx, err := c.db.Pool(t, "").Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), `SELECT FROM psp_operations WHERE id = $1 FOR UPDATE`, operations[0].ID); err != nil {
			t.Fatal(err)
		}
		if recorded := c.record(t, worker, results); recorded[0] != payments.Locked || recorded[1] != payments.Applied {
			t.Fatalf("recorded %v", recorded)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.record(t, worker, results)
}

func (c caller) record(t *testing.T, worker *payments.Processor, results []payments.Result) []payments.Recorded {
	t.Helper()
	recorded, err := worker.Record(t.Context(), results)
	if err != nil {
		t.Fatal(err)
	}
	return recorded
}

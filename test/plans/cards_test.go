package plans

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
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

	c.await(t, paid[0])
	for _, status := range []string{"processing", "failed"} {
		c.get(t, "/api/v1/payments?status="+status)
		c.get(t, "/api/v1/payments?limit=100&status="+status+"&account="+accounts[0].String())
	}

	pool := c.open(t, "worker", c.sent["worker"].trace)
	worker := &payments.Processor{DB: pool}
	if waiting, err := payments.CountWaiting(t.Context(), pool); err != nil || waiting.Pending != 100 {
		t.Fatalf("%+v wait, %v", waiting, err)
	}
	c.settle(t, worker, false)
	c.succeed(t, refunds)
	c.settle(t, worker, true)
}

// await reads a payment that is processing, and waits for its end in vain.
func (c caller) await(t *testing.T, payment uuid.UUID) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/payments/"+payment.String(), nil)
	r.Header.Set("Prefer", "wait=1")
	c.do(t, r, http.StatusOK)
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
	if more, err := worker.ClaimOperations(t.Context(), 100, time.Minute); err != nil || len(more) != 0 {
		t.Fatalf("claimed %d, %v", len(more), err)
	}
	if _, err := payments.CountWaiting(t.Context(), worker.DB.(idempotency.Querier)); err != nil {
		t.Fatal(err)
	}
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
	c.record(t, c.processor, results[:1]) // as a webhook of the PSP does
}

func (c caller) record(t *testing.T, worker *payments.Processor, results []payments.Result) []payments.Recorded {
	t.Helper()
	recorded, err := worker.Record(t.Context(), results)
	if err != nil {
		t.Fatal(err)
	}
	return recorded
}

package plans

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// live takes payments through their whole life, a hundred at a time.
func (c caller) live(t *testing.T, accounts []uuid.UUID) {
	t.Helper()
	hold := func(d time.Duration) (ids []uuid.UUID) {
		var commands []payments.Command
		for i := range 100 {
			p := payment(accounts[i], accounts[(i+1)%100]).(payments.CreatePayment)
			p.AmountMinor, p.Authorization = 1, d
			commands = append(commands, p)
		}
		return c.process(t, commands...)
	}
	captured, canceled := hold(time.Hour), hold(time.Hour)
	hold(time.Millisecond)

	var capture, cancel, refund []payments.Command
	for i := range captured {
		capture = append(capture, payments.CapturePayment{Target: payments.Target{PaymentID: captured[i]}})
		cancel = append(cancel, payments.CancelPayment{Target: payments.Target{PaymentID: canceled[i]}})
		refund = append(refund, payments.RefundPayment{Target: payments.Target{PaymentID: captured[i]}})
	}
	c.lockedPayment(t, capture[0].(payments.CapturePayment))
	c.succeed(t, capture)
	c.succeed(t, cancel)
	refunded := c.succeed(t, refund)
	c.sweep(t)

	paid := "/api/v1/payments/" + captured[0].String()
	c.get(t, paid)
	c.get(t, paid+"/refunds")
	c.get(t, "/api/v1/refunds/"+refunded[0].String())
	for _, status := range []string{"completed", "authorized", "expired"} {
		c.get(t, "/api/v1/payments?status="+status)
		c.get(t, "/api/v1/payments?status="+status+"&account="+accounts[0].String())
	}
}

func (c caller) succeed(t *testing.T, commands []payments.Command) (ids []uuid.UUID) {
	t.Helper()
	var rs []payments.Request
	for _, command := range commands {
		rs = append(rs, c.request(command))
	}
	as, err := c.processor.Process(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if a.State != idempotency.New || a.Response.Status >= http.StatusMultipleChoices {
			t.Fatalf("answered %s %d %s", a.State, a.Response.Status, a.Response.Body)
		}
		var changed struct{ ID uuid.UUID }
		if err := json.Unmarshal(a.Response.Body, &changed); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, changed.ID)
	}
	return ids
}

// sweep releases what has expired, as the worker does, which also asks what is overdue.
func (c caller) sweep(t *testing.T) {
	t.Helper()
	pool := c.open(t, "worker", c.sent["worker"].trace)
	worker := &payments.Processor{DB: pool}
	if n, err := worker.ExpireBatch(t.Context(), 100); err != nil || n == 0 {
		t.Fatalf("released %d, %v", n, err)
	}
	if _, err := payments.OldestOverdue(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
}

// lockedPayment sends a command about a payment that somebody else keeps locked.
func (c caller) lockedPayment(t *testing.T, command payments.CapturePayment) {
	t.Helper()
	tx, err := c.db.Pool(t, "").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM payments WHERE id = $1 AND tenant_id = $2 FOR UPDATE`, command.PaymentID, c.tenant); err != nil {
		t.Fatal(err)
	}

	r := c.request(command)
	if as, err := c.processor.Process(t.Context(), []payments.Request{r}); err != nil || as[0].State != idempotency.Busy {
		t.Fatalf("answered %v, %v", as, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !c.processor.Await(t.Context(), r) {
		t.Fatal("the payment counts as held")
	}
}

package payments_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/payments"
)

// A capture was claimed in time and then waited for the payment, until its time was over.
func TestCaptureIsDatedUnderLock(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	hold := b.pay(b.system, b.customer(t, 0), 100)
	c := hold.Command.(payments.CreatePayment)
	c.Authorization = time.Millisecond
	hold.Command = c
	p := decode[payments.Payment](t, b.process(t, hold)[0])

	late := b.request(payments.CapturePayment{Target: payments.Target{PaymentID: p.ID}})
	late.At = p.ProcessedAt
	err := pgx.BeginFunc(t.Context(), b.owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT pg_sleep(0.002)`); err != nil { // its time is over
			return err
		}
		outcomes, err := payments.Execute(t.Context(), tx, []payments.Request{late})
		if err != nil {
			return err
		}
		if r := outcomes[0].Refusal; r == nil || r.Code != payments.AuthorizationExpired {
			t.Errorf("%+v", outcomes[0])
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

package payments_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/payments"
)

// TestOperationKeepsItsTrace: the traceparent of the request is in its operation and in the events of the result.
func TestOperationKeepsItsTrace(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	shop := b.customer(t, 0)

	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	traced, untraced := b.byCard(shop, 100), b.byCard(shop, 200)
	traced.Headers, untraced.Headers = map[string]string{"traceparent": parent}, nil
	b.process(t, traced, untraced)

	got := map[int64]string{}
	for _, o := range b.claimed(t, 2) {
		got[o.AmountMinor] = o.Traceparent
		b.record(t, payments.Applied, payments.Result{
			OperationID: o.ID, State: payments.Succeeded, AmountMinor: o.AmountMinor, Currency: "USD", Reference: o.ID.String(),
		})
	}
	if diff := cmp.Diff(map[int64]string{100: parent, 200: ""}, got); diff != "" {
		t.Error(diff)
	}
	const completed = `SELECT count(*) FROM outbox_events WHERE event_type = 'payment.completed' AND headers->>'traceparent' IS NOT DISTINCT FROM nullif($1, '')`
	for _, parent := range []string{parent, ""} {
		if n := count(t, b.owner, completed, parent); n != 1 {
			t.Errorf("%d events with the traceparent %q", n, parent)
		}
	}
	if n := count(t, b.owner, `SELECT count(*) FROM psp_operations WHERE traceparent IS NULL`); n != 1 {
		t.Errorf("%d operations without a traceparent", n)
	}
}

package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
)

func TestMeaningOfAResource(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	for _, c := range []struct {
		status           string
		charged, refunds State // empty: an operator
	}{
		{"completed", Charged, Refunded},
		{"processing", Processing, Refunding},
		{"declined", Unpaid, RefundDue},
		{"failed", Unpaid, RefundDue},
		{"canceled", "", ""},
		{"", "", ""},
	} {
		a := client.Answer{Status: 200, Body: fmt.Appendf(nil, `{"id": %q, "status": %q}`, id, c.status)}
		charged, err := moveCharged(a, &id)
		if charged.to != c.charged || (c.charged == "") != errors.Is(err, errAskOperator) {
			t.Errorf("a payment that is %q leads to %q, %v", c.status, charged.to, err)
		}
		refunded, err := moveRefunded(a, &id)
		if refunded.to != c.refunds || (c.refunds == "") != errors.Is(err, errAskOperator) {
			t.Errorf("a refund that is %q leads to %q, %v", c.status, refunded.to, err)
		}
		if (refunded.to == RefundDue) != (refunded.declined == 1 && refunded.pause > 0) {
			t.Errorf("a refund that is %q: %+v", c.status, refunded)
		}
	}

	// What speaks of something else, or of nothing, says nothing.
	other := uuid.New()
	for body, about := range map[string]*uuid.UUID{
		fmt.Sprintf(`{"id": %q, "status": "completed"}`, id): &other,
		`{"status": "completed"}`:                            nil,
		`<html>`:                                             nil,
	} {
		if m, err := moveCharged(client.Answer{Status: 200, Body: []byte(body)}, about); err == nil || m.to != "" {
			t.Errorf("%s leads to %q", body, m.to)
		}
	}
}

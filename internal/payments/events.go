package payments

import (
	"encoding/json"
	"fmt"

	"github.com/oncepay/oncepay/internal/outbox"
)

// Types of the events, and the aggregates they belong to. The schemas of their payloads are in
// api/events.
const (
	PaymentCompleted = "payment.completed"
	PaymentDeclined  = "payment.declined"
	AccountOpened    = "account.opened"

	aggregatePayments = "payments"
	aggregateAccounts = "accounts"
)

// eventsOf returns one event for each outcome that wrote something. A refusal alone is no event.
func eventsOf(rs []Request, outcomes []Outcome) ([]outbox.Event, error) {
	events := make([]outbox.Event, 0, len(outcomes))
	for i, o := range outcomes {
		e := outbox.Event{ID: newID(rs[i].At), AggregateVersion: 1, Headers: rs[i].Headers}

		var err error
		switch {
		case o.Payment != nil:
			e.AggregateType = aggregatePayments
			e.AggregateID, e.Type = o.Payment.ID.String(), PaymentCompleted
			if o.Payment.Status == Declined {
				e.Type = PaymentDeclined
			}
			e.Payload, err = json.Marshal(o.Payment)
		case o.Account != nil:
			e.AggregateType = aggregateAccounts
			e.AggregateID, e.Type = o.Account.ID.String(), AccountOpened
			e.Payload, err = json.Marshal(o.Account)
		default:
			continue
		}

		if err != nil {
			return nil, fmt.Errorf("encode event %s: %w", e.Type, err)
		}
		events = append(events, e)
	}
	return events, nil
}

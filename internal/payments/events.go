package payments

import (
	"maps"

	"github.com/oncepay/oncepay/internal/outbox"
)

// Types of the events, and the aggregates they belong to. The schemas of their payloads are in
// api/events. A refund's event belongs to its payment, so consumers see both in order.
const (
	AccountOpened = "account.opened"

	PaymentAuthorized = "payment.authorized"
	PaymentCompleted  = "payment.completed"
	PaymentCanceled   = "payment.canceled"
	PaymentExpired    = "payment.expired"
	PaymentDeclined   = "payment.declined"

	RefundCompleted = "refund.completed"
	RefundDeclined  = "refund.declined"

	// Only of payments by card.
	PaymentProcessing = "payment.processing"
	PaymentFailed     = "payment.failed"
	RefundProcessing  = "refund.processing"
	RefundFailed      = "refund.failed"

	aggregatePayments = "payments"
	aggregateAccounts = "accounts"

	// tenantID is an extension attribute of CloudEvents, as Kafka's binding writes it. Each event
	// names its tenant: a topic has those of all.
	tenantID = "ce_tenantid"
)

// eventsOf returns one event for each outcome that wrote something. A refusal alone is no event.
func eventsOf(rs []Request, outcomes []Outcome) []outbox.Event {
	events := make([]outbox.Event, 0, len(outcomes))
	for i, o := range outcomes {
		e := outbox.Event{
			ID: newID(rs[i].At), TenantID: rs[i].TenantID, Payload: o.JSON, Headers: headersOf(&rs[i]),
		}
		switch {
		case o.Account != nil:
			e.AggregateType, e.AggregateID = aggregateAccounts, o.Account.ID.String()
			e.Type, e.AggregateVersion = AccountOpened, 1
		case o.Payment != nil:
			e.AggregateType, e.AggregateID = aggregatePayments, o.Payment.ID.String()
			e.Type, e.AggregateVersion = "payment."+string(o.Payment.Status), o.version
		case o.Refund != nil:
			e.AggregateType, e.AggregateID = aggregatePayments, o.Refund.PaymentID.String()
			e.Type, e.AggregateVersion = "refund."+string(o.Refund.Status), o.version
		default:
			continue
		}
		events = append(events, e)
	}
	return events
}

func headersOf(r *Request) map[string]string {
	headers := make(map[string]string, len(r.Headers)+1)
	maps.Copy(headers, r.Headers)
	headers[tenantID] = r.TenantID.String()
	return headers
}

package statements

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/inbox"
)

// transfer is the money that an event says has moved.
type transfer struct {
	from, to uuid.UUID
	amount   int64
	currency string
	at       time.Time
}

// payload is the part of a payment or a refund that counts. Members added later are ignored.
type payload struct {
	ID                 uuid.UUID `json:"id"`
	Status             string    `json:"status"`
	AmountMinor        int64     `json:"amount_minor"`
	Currency           string    `json:"currency"`
	SourceAccount      uuid.UUID `json:"source_account"`
	DestinationAccount uuid.UUID `json:"destination_account"`
	ProcessedAt        time.Time `json:"processed_at"`

	// Of a payment: what moved, which is less than the amount if a part of a hold was captured, and
	// when the hold ended. Payments that held nothing have no such time, and those of older programs
	// neither member.
	CapturedMinor        *int64     `json:"captured_minor"`
	AuthorizationEndedAt *time.Time `json:"authorization_ended_at"`

	SettledAt *time.Time `json:"settled_at"` // of a payment by card, and of a refund of one
	PaymentID uuid.UUID  `json:"payment_id"` // of a refund
}

// readPayment returns what a payment moved, or an error if its event is inconsistent or incomplete.
func readPayment(e inbox.Event) (transfer, error) {
	var p payload
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return transfer{}, fmt.Errorf("decode payment: %w", err)
	}
	if p.ID == uuid.Nil || p.ID.String() != e.Subject {
		return transfer{}, fmt.Errorf("payment %s in an event about %s", p.ID, e.Subject)
	}

	t := p.transfer()
	if p.CapturedMinor != nil {
		t.amount = *p.CapturedMinor
	}
	if p.AuthorizationEndedAt != nil {
		t.at = *p.AuthorizationEndedAt // the money moved with the capture
	}
	if t.amount > p.AmountMinor {
		return t, fmt.Errorf("captured %d of %d", t.amount, p.AmountMinor)
	}
	return t, t.check(p.Status)
}

// readRefund is readPayment for a refund. Its event is about the payment.
func readRefund(e inbox.Event) (transfer, error) {
	var r payload
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return transfer{}, fmt.Errorf("decode refund: %w", err)
	}
	if r.ID == uuid.Nil || r.PaymentID == uuid.Nil || r.PaymentID.String() != e.Subject {
		return transfer{}, fmt.Errorf("refund %s of payment %s in an event about %s",
			r.ID, r.PaymentID, e.Subject)
	}

	t := r.transfer()
	return t, t.check(r.Status)
}

func (p payload) transfer() transfer {
	t := transfer{p.SourceAccount, p.DestinationAccount, p.AmountMinor, p.Currency, p.ProcessedAt}
	if p.SettledAt != nil {
		t.at = *p.SettledAt // the money moved when the PSP's result was recorded
	}
	return t
}

// maxAmount is far above what one payment may move, and low enough that a thousand of them fit in
// an int64.
const maxAmount = 1_000_000_000_000_000

func (t transfer) check(status string) error {
	switch {
	case status != "completed":
		return fmt.Errorf("status in a completed event is %q", status)
	case t.amount < 1 || t.amount > maxAmount:
		return fmt.Errorf("amount is %d", t.amount)
	case !isCurrency(t.currency):
		return fmt.Errorf("currency is %q", t.currency)
	case t.from == uuid.Nil || t.to == uuid.Nil || t.from == t.to:
		return fmt.Errorf("accounts are %s and %s", t.from, t.to)
	case t.at.IsZero():
		return errors.New("no time")
	}
	return nil
}

func isCurrency(s string) bool {
	return len(s) == 3 &&
		!slices.ContainsFunc([]byte(s), func(c byte) bool { return c < 'A' || c > 'Z' })
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/outbox"
)

// State is what is certain about an order. Each has an event of its name, such as order.charged.
type State string

// The states of an order.
const (
	Placed     State = "placed"
	Reserved   State = "reserved"   // stock is set aside; from now on a charge may have been made
	Processing State = "processing" // the charge is under way, and payment_id says where to look
	Charged    State = "charged"
	Unpaid     State = "unpaid"     // certainly not charged
	RefundDue  State = "refund_due" // charged, and canceled
	Refunding  State = "refunding"  // the refund is under way
	Refunded   State = "refunded"

	// How an order ends.
	Rejected  State = "rejected"  // nothing was reserved
	Confirmed State = "confirmed" // charged once, and sold
	Released  State = "released"  // not charged, or refunded; the stock is back
)

// saga has the step that an order needs in each state, and where that may lead. A state that is not
// in it is an end. The step of an order has the key <order>/<step>, whoever takes it and however
// often.
var saga = map[State]step{
	Placed:     {key: "reserve", work: reserve, to: []State{Reserved, Rejected}},
	Reserved:   {key: "charge", call: charge, to: []State{Charged, Processing, Unpaid}},
	Processing: {call: awaitCharge, to: []State{Charged, Unpaid}},
	Charged:    {key: "confirm", work: confirm, to: []State{Confirmed, RefundDue}},
	RefundDue:  {key: "refund", call: refund, to: []State{Refunded, Refunding, RefundDue}},
	Refunding:  {call: awaitRefund, to: []State{Refunded, RefundDue}},
	Refunded:   {key: "release", work: release, to: []State{Released}},
	Unpaid:     {key: "release", work: release, to: []State{Released}},
}

// step either calls the payments service or works in this database, never both.
type step struct {
	key  string
	call func(_ context.Context, _ *worker, _ order, key string) (move, error) // no transaction open
	work func(_ context.Context, _ pgx.Tx, _ order, key string) (move, error)  // in the move's own
	to   []State
}

// move is what a step leads to.
type move struct {
	to       State
	reason   string     // empty: as before
	payment  *uuid.UUID // nil: as before
	refund   *uuid.UUID
	declined int           // refunds that were declined
	pause    time.Duration // before the next step
}

// order is a row of orders, and in JSON what clients and events see of it.
type order struct {
	ID              uuid.UUID  `json:"id"`
	Item            string     `json:"item"`
	Quantity        int        `json:"quantity"`
	AmountMinor     int64      `json:"amount_minor"`
	Currency        string     `json:"currency"`
	Account         *uuid.UUID `json:"account,omitempty"`
	Card            *string    `json:"-"`
	PayTo           uuid.UUID  `json:"-"`
	State           State      `json:"state"`
	Version         int64      `json:"version"`
	Reason          string     `json:"reason,omitempty"`
	CancelRequested bool       `json:"cancel_requested"`
	PaymentID       *uuid.UUID `json:"payment_id,omitempty"`
	RefundID        *uuid.UUID `json:"refund_id,omitempty"`
	RefundAttempt   int        `json:"-"`
	Token           int64      `json:"-"`
	Tries           int        `json:"-"`
	FirstTriedAt    *time.Time `json:"-"`
}

const columns = `id, item, quantity, amount_minor, currency, account, card, pay_to, state, version,
  reason, cancel_requested, payment_id, refund_id, refund_attempt, token, tries, first_tried_at`

// keyFor returns the key of the step for an order. A refund that was declined is over: its key
// stands for that answer. The next refund is another intention.
func (s step) keyFor(o order) string {
	key := o.ID.String() + "/" + s.key
	if o.State == RefundDue && o.RefundAttempt > 1 {
		key += fmt.Sprintf("/%d", o.RefundAttempt)
	}
	return key
}

const advanceOrder = `
UPDATE orders SET state = $2, version = version + 1,
  reason = CASE WHEN $3 = '' THEN reason ELSE $3 END,
  payment_id = coalesce($4, payment_id), refund_id = coalesce($5, refund_id),
  refund_attempt = refund_attempt + $6,
  token = token + 1, tries = 0, first_tried_at = NULL, last_error = '',
  next_try_at = CASE WHEN $7 THEN NULL ELSE now() + $8::interval END
WHERE id = $1
RETURNING ` + columns

// advance makes a move, ends the claim and appends the move's event. The caller's transaction has
// locked the order.
func advance(ctx context.Context, tx pgx.Tx, o order, m move) error {
	_, goesOn := saga[m.to]
	moved, err := one(ctx, tx, advanceOrder,
		o.ID, m.to, m.reason, m.payment, m.refund, m.declined, !goesOn, m.pause)
	if err != nil {
		return fmt.Errorf("advance order: %w", err)
	}
	return appendEvent(ctx, tx, moved)
}

func appendEvent(ctx context.Context, tx pgx.Tx, o order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}

	return outbox.Append(ctx, tx, []outbox.Event{{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "orders", AggregateID: o.ID.String(),
		AggregateVersion: o.Version, Type: "order." + string(o.State), Payload: payload,
	}})
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// one runs a statement that returns the columns of one order; otherwise pgx.ErrNoRows.
func one(ctx context.Context, db querier, sql string, args ...any) (order, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return order{}, err
	}
	return pgx.CollectOneRow(rows, pgx.RowToStructByName[order])
}

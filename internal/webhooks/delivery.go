package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// DeliveryState is what has become of a delivery.
type DeliveryState string

// The states of a delivery.
const (
	Pending   DeliveryState = "pending"   // it will be sent, or sent again
	Delivered DeliveryState = "delivered" // the endpoint answered 2xx
	Failed    DeliveryState = "failed"    // given up: it failed for GiveUp while others succeeded
)

// Delivery is an event that is to be sent to an endpoint.
type Delivery struct {
	ID         uuid.UUID     `json:"id"` // the event's, and the webhook-id of every call
	EventType  string        `json:"event_type"`
	Subject    string        `json:"subject"` // the payment; deliveries of one subject keep their order
	State      DeliveryState `json:"state"`
	Tries      int           `json:"tries"`
	LastStatus *int          `json:"last_status"` // of the last answer; nil: none came
	LastError  string        `json:"last_error,omitempty"`
	CreatedAt  time.Time     `json:"created_at"`
	NextTryAt  *time.Time    `json:"next_try_at"` // while pending
	EndedAt    *time.Time    `json:"ended_at"`
}

const deliveryColumns = `event_id, event_type, subject, state, tries, nullif(last_status, 0), last_error,
    created_at, CASE state WHEN 'pending' THEN next_try_at END, ended_at`

func (d *Delivery) columns() []any {
	return []any{&d.ID, &d.EventType, &d.Subject, &d.State, &d.Tries, &d.LastStatus,
		&d.LastError, &d.CreatedAt, &d.NextTryAt, &d.EndedAt}
}

func (d *Delivery) read() {
	d.CreatedAt = d.CreatedAt.UTC()
	for _, t := range []*time.Time{d.NextTryAt, d.EndedAt} {
		if t != nil {
			*t = t.UTC()
		}
	}
}

// By webhook_deliveries_event. Ids of events are UUIDv7, in the order of their time.
const selectDeliveries = `
SELECT ` + deliveryColumns + ` FROM webhook_deliveries
WHERE endpoint_id = $2 AND tenant_id = $1 AND event_id < $3 ORDER BY event_id DESC LIMIT $4`

// ListDeliveries returns the deliveries of an endpoint of the tenant with ids below before, newest
// event first, or ErrNotFound. uuid.Max is above all.
func ListDeliveries(
	ctx context.Context, tx pgx.Tx, tenant, endpoint, before uuid.UUID, limit int,
) ([]Delivery, error) {
	if _, err := Find(ctx, tx, tenant, endpoint); err != nil {
		return nil, err
	}

	rows, _ := tx.Query(ctx, selectDeliveries, tenant, endpoint, before, limit)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Delivery, err error) {
		err = row.Scan(d.columns()...)
		d.read()
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("list webhook deliveries: %w", err)
	}
	return all, nil
}

// By webhook_deliveries_event. It keeps its place: later deliveries of its subject that are pending
// wait for it.
const redeliver = `
UPDATE webhook_deliveries
SET state = 'pending', tries = 0, first_tried_at = NULL, ended_at = NULL, next_try_at = now()
WHERE endpoint_id = $2 AND event_id = $3 AND tenant_id = $1
RETURNING ` + deliveryColumns

// Redeliver makes a delivery due now, whatever its state. Calls keep the webhook-id: the receiver
// must be ready to see it again.
func Redeliver(
	ctx context.Context, tx pgx.Tx, tenant, endpoint, delivery uuid.UUID,
) (d Delivery, err error) {
	if _, err := Find(ctx, tx, tenant, endpoint); err != nil {
		return d, err
	}
	if err := tx.QueryRow(ctx, redeliver, tenant, endpoint, delivery).Scan(d.columns()...); err != nil {
		return d, fmt.Errorf("redeliver webhook: %w", notFound(err))
	}
	d.read()
	return d, nil
}

package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ErrMalformed means that an event cannot be sent as it is.
var ErrMalformed = errors.New("malformed event")

// Event is a CloudEvent of a tenant.
type Event struct {
	ID       uuid.UUID
	Tenant   uuid.UUID
	Type     string
	Source   string
	Subject  string // the aggregate it is about
	Time     time.Time
	Sequence int64 // the aggregate's version; zero: not given
	Payload  []byte

	Traceparent string // which the calls continue; empty: not traced
}

// body is what an endpoint gets: type, timestamp and data as Standard Webhooks has them, and the
// attributes of the CloudEvent, whose JSON form this is as well.
type body struct {
	SpecVersion string          `json:"specversion"`
	ID          uuid.UUID       `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject"`
	Time        time.Time       `json:"time"`
	Timestamp   time.Time       `json:"timestamp"`
	Sequence    string          `json:"sequence,omitempty"`
	Data        json.RawMessage `json:"data"`
}

// body renders the event. Later tries send the same bytes.
func (e Event) body() ([]byte, error) {
	if e.Subject == "" || !json.Valid(e.Payload) {
		return nil, fmt.Errorf("%w %s: no subject, or a payload that is no JSON", ErrMalformed, e.ID)
	}

	b := body{
		SpecVersion: "1.0", ID: e.ID, Source: e.Source, Type: e.Type, Subject: e.Subject,
		Time: e.Time.UTC(), Timestamp: e.Time.UTC(), Data: e.Payload,
	}
	if e.Sequence > 0 {
		b.Sequence = strconv.FormatInt(e.Sequence, 10)
	}

	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(b); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrMalformed, e.ID, err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

const tenantsWithEndpoints = `
SELECT DISTINCT tenant_id FROM webhook_endpoints WHERE tenant_id = ANY ($1) AND state <> 'deleted'`

// In the order of the events, whose rows get ids in that order. An event that was written before, by
// a consumer of another name, is passed over. Disabled endpoints get rows as well: what they missed is
// sent when they are enabled again.
const insertDeliveries = `
INSERT INTO webhook_deliveries (endpoint_id, tenant_id, event_id, event_type, subject, body, traceparent)
SELECT e.id, t.tenant_id, t.event_id, t.event_type, t.subject, t.body, nullif(t.traceparent, '')
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[], $6::bytea[], $7::text[])
     WITH ORDINALITY t(event_id, tenant_id, event_type, subject, at, body, traceparent, i)
JOIN webhook_endpoints e ON e.tenant_id = t.tenant_id AND e.state <> 'deleted' AND e.created_at <= t.at
     AND (e.event_types = '{}' OR t.event_type = ANY (e.event_types))
ORDER BY t.i, e.id
ON CONFLICT (endpoint_id, event_id) DO NOTHING`

// Write makes a delivery of each event for each endpoint of its tenant that takes its type. Call it
// in the transaction in which an inbox notes the events. Events of one subject must be written in
// order, by one transaction after the other.
func Write(ctx context.Context, tx pgx.Tx, events []Event) error {
	wanted, err := ofTenantsWithEndpoints(ctx, tx, events)
	if err != nil || len(wanted) == 0 {
		return err
	}

	n := len(wanted)
	ids, tenants := make([][16]byte, n), make([][16]byte, n)
	types, subjects := make([]string, n), make([]string, n)
	times, bodies, traces := make([]time.Time, n), make([][]byte, n), make([]string, n)
	for i, e := range wanted {
		ids[i], tenants[i], types[i], subjects[i], times[i] = e.ID, e.Tenant, e.Type, e.Subject, e.Time
		traces[i] = e.Traceparent
		if bodies[i], err = e.body(); err != nil {
			return err
		}
	}

	_, err = tx.Exec(ctx, insertDeliveries, ids, tenants, types, subjects, times, bodies, traces)
	if err != nil {
		return fmt.Errorf("write webhook deliveries: %w", err)
	}
	return nil
}

// ofTenantsWithEndpoints spares the rest of the work for tenants without endpoints, most of them.
func ofTenantsWithEndpoints(
	ctx context.Context, tx pgx.Tx, events []Event,
) (wanted []Event, err error) {
	has := map[uuid.UUID]bool{}
	for _, e := range events {
		has[e.Tenant] = false
	}
	tenants := make([][16]byte, 0, len(has))
	for t := range has {
		tenants = append(tenants, t)
	}

	rows, _ := tx.Query(ctx, tenantsWithEndpoints, tenants) // CollectRows has the query's error, too
	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("find tenants with webhook endpoints: %w", err)
	}
	for _, t := range found {
		has[t] = true
	}

	for _, e := range events {
		if has[e.Tenant] {
			wanted = append(wanted, e)
		}
	}
	return wanted, nil
}

package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/outbox"
)

// EndpointDisabled is the event by which a tenant learns that one of its endpoints was disabled. Its
// payload is the endpoint.
const EndpointDisabled = "webhook_endpoint.disabled"

// endpoints is the aggregate of that event.
const endpoints = "webhook-endpoints"

// result is what came of a call.
type result struct {
	*delivery
	status int    // zero: no answer
	reason string // of a failure; empty: delivered
	pause  time.Duration
}

func (r result) delivered() bool { return r.reason == "" }

// Only the holder of the token records. A delivery that has failed for $7 while its endpoint took others
// has failed; if the endpoint takes nothing, it is the endpoint that is disabled.
//
// The next delivery of the subject, if it was passed over, is due at once.
const recordResults = `
WITH r AS (
  SELECT r.*, e.state_since, coalesce(e.failing_since > now() - $7::interval, true) AS takes_others
  FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::float8[])
       r(endpoint_id, id, token, status, reason, pause)
  JOIN webhook_endpoints e ON e.id = r.endpoint_id
), done AS (
  UPDATE webhook_deliveries d
  SET state = CASE WHEN r.reason = '' THEN 'delivered'
                   WHEN r.takes_others AND greatest(d.first_tried_at, r.state_since) <= now() - $7::interval
                     AND d.first_tried_at IS NOT NULL THEN 'failed'
                   ELSE 'pending' END,
      ended_at = CASE WHEN r.reason = '' THEN now()
                      WHEN r.takes_others AND greatest(d.first_tried_at, r.state_since) <= now() - $7::interval
                        AND d.first_tried_at IS NOT NULL THEN now() END,
      tries = d.tries + 1, in_flight = false, first_tried_at = coalesce(d.first_tried_at, now()),
      next_try_at = now() + r.pause * interval '1 second', last_status = r.status, last_error = r.reason
  FROM r
  WHERE d.id = r.id AND d.token = r.token AND d.state = 'pending'
  RETURNING d.endpoint_id, d.id, d.subject, d.state
), next AS (
  UPDATE webhook_deliveries d SET next_try_at = now()
  FROM done CROSS JOIN LATERAL (
    SELECT n.id FROM webhook_deliveries n
    WHERE n.endpoint_id = done.endpoint_id AND n.subject = done.subject AND n.state = 'pending' AND n.id + 0 > done.id
    ORDER BY n.id + 0 LIMIT 1) n
  WHERE done.state <> 'pending' AND d.id = n.id AND d.token = 0 AND d.next_try_at > now())
SELECT state, count(*) FROM done GROUP BY state`

// Only endpoints that change are locked, in order: two senders that meet here do not deadlock. Those
// of a tenant that moves stay as they are: a sender that was frozen may have an answer when their rows
// are copied already, and the next cluster would number its own events like those made here.
const recordHealth = `
WITH r AS (
  SELECT * FROM unnest($1::uuid[], $2::bool[], $3::bool[]) r(endpoint_id, delivered, gone)
), changed AS (
  SELECT e.id, r.delivered, r.gone FROM webhook_endpoints e JOIN r ON r.endpoint_id = e.id
  WHERE e.state = 'enabled' AND e.tenant_id <> ALL(ARRAY(SELECT tenant_id FROM tenant_moves)) AND (r.gone
    OR r.delivered AND e.failing_since IS NOT NULL
    OR NOT r.delivered AND coalesce(e.failing_since <= now() - $4::interval, true))
  ORDER BY e.id FOR NO KEY UPDATE OF e
)
UPDATE webhook_endpoints e
SET failing_since = CASE WHEN c.delivered AND NOT c.gone THEN NULL
                         ELSE coalesce(e.failing_since, date_trunc('milliseconds', now())) END,
    state = CASE WHEN o.over THEN 'disabled' ELSE 'enabled' END,
    disabled_reason = CASE WHEN c.gone THEN 'gone' WHEN o.over THEN 'failing' ELSE '' END,
    state_since = CASE WHEN o.over THEN date_trunc('milliseconds', now()) ELSE e.state_since END,
    event_count = e.event_count + o.over::int
FROM changed c JOIN webhook_endpoints f ON f.id = c.id
CROSS JOIN LATERAL (
  SELECT c.gone OR NOT c.delivered AND coalesce(f.failing_since <= now() - $4::interval, false) AS over) o
WHERE e.id = c.id
RETURNING e.tenant_id, e.event_count, ` + endpointColumns

// record records results in one transaction, with an event for each endpoint that it disables. It
// returns how many deliveries got which state.
func (s *Sender) record(ctx context.Context, rs []result) (states map[DeliveryState]int, err error) {
	err = pgx.BeginTxFunc(ctx, s.DB, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if states, err = s.recordResults(ctx, tx, rs); err != nil {
			return err
		}
		disabled, err := s.recordHealth(ctx, tx, rs)
		if err != nil {
			return err
		}
		return outbox.Append(ctx, tx, disabled)
	})
	if err != nil {
		return nil, fmt.Errorf("record results of webhooks: %w", err)
	}
	return states, nil
}

func (s *Sender) recordResults(
	ctx context.Context, tx pgx.Tx, rs []result,
) (map[DeliveryState]int, error) {
	n := len(rs)
	of, ids, tokens := make([][16]byte, n), make([]int64, n), make([]int64, n)
	statuses, reasons, pauses := make([]int, n), make([]string, n), make([]float64, n)
	for i, r := range rs {
		of[i], ids[i], tokens[i] = r.endpoint, r.id, r.token
		statuses[i], reasons[i], pauses[i] = r.status, r.reason, r.pause.Seconds()
	}

	states := map[DeliveryState]int{}
	var state DeliveryState
	var count int
	rows, _ := tx.Query(ctx, recordResults, of, ids, tokens, statuses, reasons, pauses, GiveUp)
	_, err := pgx.ForEachRow(rows, []any{&state, &count}, func() error {
		states[state] = count
		return nil
	})
	return states, err
}

// recordHealth notes which endpoints take deliveries and which do not, and disables those that are
// gone or have taken none for too long.
func (s *Sender) recordHealth(ctx context.Context, tx pgx.Tx, rs []result) ([]outbox.Event, error) {
	type health struct{ delivered, gone bool }
	of := map[uuid.UUID]health{}
	for _, r := range rs {
		h := of[r.endpoint]
		of[r.endpoint] = health{h.delivered || r.delivered(), h.gone || r.status == http.StatusGone}
	}
	var ids [][16]byte
	var delivered, gone []bool
	for id, h := range of {
		ids, delivered, gone = append(ids, id), append(delivered, h.delivered), append(gone, h.gone)
	}

	var events []outbox.Event
	var e Endpoint
	var tenant uuid.UUID
	var version int64
	rows, _ := tx.Query(ctx, recordHealth, ids, delivered, gone, GiveUp)
	_, err := pgx.ForEachRow(rows, append([]any{&tenant, &version}, e.columns()...), func() error {
		if e.State != Disabled {
			return nil
		}
		event, err := disabled(e, tenant, version)
		events = append(events, event)
		return err
	})
	return events, err
}

func disabled(e Endpoint, tenant uuid.UUID, version int64) (outbox.Event, error) {
	e.read()
	id, err := uuid.NewV7()
	if err != nil {
		return outbox.Event{}, fmt.Errorf("make event id: %w", err)
	}
	payload, err := json.Marshal(e)
	if err != nil {
		return outbox.Event{}, fmt.Errorf("encode webhook endpoint: %w", err)
	}

	return outbox.Event{
		ID: id, TenantID: tenant,
		AggregateType: endpoints, AggregateID: e.ID.String(), AggregateVersion: version,
		Type: EndpointDisabled, Payload: payload, Headers: map[string]string{"ce_tenantid": tenant.String()},
	}, nil
}

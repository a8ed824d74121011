package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// delivery is one that was claimed.
type delivery struct {
	endpoint uuid.UUID
	id       int64
	token    int64
	tries    int // failures before this one
	event    string
	body     []byte
	url      string
	secrets  []string // the newest first
	trace    string   // traceparent of the event
	until    time.Time
}

// blockedPause is how long a delivery is left alone that waits for one in flight. It is due at once when
// the result of that one is recorded, unless we put it off at the same moment.
const blockedPause = 100 * time.Millisecond

// The endpoints come in random order, so that none is always last when there is not enough room. Each
// is looked up in webhook_deliveries_due, for some microseconds, and the first delivery of the same subject
// in webhook_deliveries_order, one row however many wait. That index has "id + 0": a planner without
// statistics would otherwise walk the primary key, which has that order as well.
//
// $1, $2: room of the endpoints that have calls in flight; $3: of the others; $4: of all together.
const claimDue = `
WITH due AS (
  SELECT d.endpoint_id, d.id, d.subject
  FROM (SELECT id FROM webhook_endpoints WHERE state = 'enabled'
          AND tenant_id <> ALL(ARRAY(SELECT tenant_id FROM tenant_moves)) ORDER BY random()) e
  LEFT JOIN unnest($1::uuid[], $2::int[]) r(endpoint_id, room) ON r.endpoint_id = e.id
  CROSS JOIN LATERAL (
    SELECT d.endpoint_id, d.id, d.subject FROM webhook_deliveries d
    WHERE d.endpoint_id = e.id AND d.state = 'pending' AND d.next_try_at <= now()
    ORDER BY d.next_try_at, d.id LIMIT coalesce(r.room, $3) FOR UPDATE SKIP LOCKED) d
  LIMIT $4
), held AS (
  SELECT due.endpoint_id, due.id, b.blocked_until
  FROM due LEFT JOIN LATERAL (
    SELECT greatest(now() + $6::interval, CASE WHEN NOT b.in_flight THEN b.next_try_at END) AS blocked_until
    FROM webhook_deliveries b
    WHERE b.endpoint_id = due.endpoint_id AND b.subject = due.subject AND b.state = 'pending' AND b.id + 0 < due.id
    ORDER BY b.id + 0 LIMIT 1) b ON true
)
UPDATE webhook_deliveries d
SET next_try_at = coalesce(h.blocked_until, now() + $5::interval),
    in_flight = h.blocked_until IS NULL,
    token = d.token + CASE WHEN h.blocked_until IS NULL THEN 1 ELSE 0 END
FROM held h JOIN webhook_endpoints e ON e.id = h.endpoint_id
WHERE d.id = h.id
RETURNING h.blocked_until IS NULL, d.endpoint_id, d.id, d.token, d.tries, d.event_id::text, e.url, e.secret,
  CASE WHEN e.previous_until > now() THEN e.previous_secret END,
  coalesce(d.traceparent, ''), CASE WHEN h.blocked_until IS NULL THEN d.body END`

// claim takes deliveries that are due, within the room that each endpoint has. blocked is how many
// were due and wait for an earlier one.
func (s *Sender) claim(ctx context.Context) (claimed []*delivery, blocked int, err error) {
	endpoints, rooms, others, room := s.lanes.room()
	if room < 1 {
		return nil, 0, nil
	}

	// The claim ends by the database's clock, which began to count when the statement ran, so later.
	until := time.Now().Add(s.lease())
	rows, _ := s.DB.Query(ctx, claimDue, endpoints, rooms, others, room, s.lease(), blockedPause)

	var free bool
	var d delivery
	var secret string
	var previous *string
	_, err = pgx.ForEachRow(rows, []any{
		&free, &d.endpoint, &d.id, &d.token, &d.tries, &d.event, &d.url, &secret, &previous,
		&d.trace, &d.body,
	}, func() error {
		if !free {
			blocked++
			return nil
		}

		c := d
		c.until, c.secrets = until, []string{secret}
		if previous != nil {
			c.secrets = append(c.secrets, *previous)
		}
		d.body = nil // c has it
		claimed = append(claimed, &c)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("claim webhook deliveries: %w", err)
	}
	return claimed, blocked, nil
}

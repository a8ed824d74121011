package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Retention is how long deliveries are kept, for GET and for endpoints that are disabled. What an
// endpoint missed for longer is deleted unsent when it is still disabled.
const Retention = 30 * 24 * time.Hour

const upkeepBatch = 2000

// The lease of a claim is shorter than a minute: what is in flight keeps it.
const resumeDeliveries = `
WITH d AS (
  UPDATE webhook_deliveries SET next_try_at = now(), tries = 0
  WHERE id IN (
    SELECT d.id FROM webhook_endpoints e
    JOIN webhook_deliveries d ON d.endpoint_id = e.id AND d.state = 'pending' AND d.next_try_at > now() + interval '1 minute'
    WHERE e.resuming AND e.state = 'enabled' LIMIT $1)
  RETURNING 1)
SELECT count(*) FROM d`

// One that is enabled between the two statements is found by the next call.
const resumed = `
UPDATE webhook_endpoints e SET resuming = false
WHERE e.resuming AND NOT EXISTS (SELECT FROM webhook_deliveries d
  WHERE d.endpoint_id = e.id AND d.state = 'pending' AND d.next_try_at > now() + interval '1 minute')`

// Resume makes due what waits for a later try at endpoints that were enabled again, and returns how
// many deliveries it changed. Fewer than a full batch: it is done.
func Resume(ctx context.Context, db *pgxpool.Pool) (n int, err error) {
	if err := db.QueryRow(ctx, resumeDeliveries, upkeepBatch).Scan(&n); err != nil {
		return 0, fmt.Errorf("resume webhooks: %w", err)
	}
	if _, err := db.Exec(ctx, resumed); err != nil {
		return n, fmt.Errorf("resume webhooks: %w", err)
	}
	return n, nil
}

// The oldest of all, by primary key. One that is older and still pending at an enabled endpoint was
// sent again by hand.
const deleteOld = `
DELETE FROM webhook_deliveries WHERE id IN (
  SELECT d.id FROM (SELECT id, endpoint_id, state, created_at FROM webhook_deliveries ORDER BY id LIMIT $1) d
  LEFT JOIN webhook_endpoints e ON e.id = d.endpoint_id
  WHERE d.created_at < now() - $2::interval AND (d.state <> 'pending' OR e.state IS DISTINCT FROM 'enabled'))`

// By webhook_deliveries_event.
const deleteOrphans = `
DELETE FROM webhook_deliveries WHERE id IN (
  SELECT d.id FROM webhook_endpoints e JOIN webhook_deliveries d ON d.endpoint_id = e.id
  WHERE e.state = 'deleted' LIMIT $1)`

// A day later: a transaction that is writing a delivery for it has committed by then.
const deleteEndpoints = `
DELETE FROM webhook_endpoints e
WHERE e.state = 'deleted' AND NOT EXISTS (SELECT FROM webhook_deliveries d WHERE d.endpoint_id = e.id)
  AND e.state_since < now() - interval '1 day'`

// Clear deletes deliveries that are older than Retention and those of deleted endpoints, a batch of
// them, and returns how many.
func Clear(ctx context.Context, db *pgxpool.Pool) (n int, err error) {
	old, err := db.Exec(ctx, deleteOld, upkeepBatch, Retention)
	if err != nil {
		return 0, fmt.Errorf("delete old webhook deliveries: %w", err)
	}
	orphans, err := db.Exec(ctx, deleteOrphans, upkeepBatch)
	if err != nil {
		return 0, fmt.Errorf("delete deliveries of deleted webhook endpoints: %w", err)
	}
	if _, err := db.Exec(ctx, deleteEndpoints); err != nil {
		return 0, fmt.Errorf("delete webhook endpoints: %w", err)
	}
	return int(old.RowsAffected() + orphans.RowsAffected()), nil
}

// What is due and waits for an earlier delivery was put off, so it does not count.
const backlog = `
SELECT coalesce(extract(epoch FROM now() - min(d.next_try_at)), 0)::float8,
       (SELECT count(*) FROM webhook_endpoints WHERE state = 'disabled')
FROM webhook_endpoints e CROSS JOIN LATERAL (
  SELECT d.next_try_at FROM webhook_deliveries d
  WHERE d.endpoint_id = e.id AND d.state = 'pending' AND d.next_try_at <= now()
  ORDER BY d.next_try_at LIMIT 1) d
WHERE e.state = 'enabled'`

// Backlog returns for how long the oldest delivery that is due has been waiting to be claimed, and how
// many endpoints are disabled.
func Backlog(ctx context.Context, db *pgxpool.Pool) (oldest time.Duration, disabled int64, err error) {
	var seconds float64
	if err := db.QueryRow(ctx, backlog).Scan(&seconds, &disabled); err != nil {
		return 0, 0, fmt.Errorf("measure webhooks: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), disabled, nil
}

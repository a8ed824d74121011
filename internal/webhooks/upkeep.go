package webhooks

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Retention is how long deliveries are kept, for GET and for endpoints that are disabled or far behind.
// What an endpoint has missed for longer is deleted unsent.
const Retention = 30 * 24 * time.Hour

// Batch is how many deliveries Resume and Clear take at a time.
const Batch = 2000

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
// many deliveries it changed. Fewer than Batch: it is done.
func Resume(ctx context.Context, db *pgxpool.Pool) (n int, err error) {
	if err := db.QueryRow(ctx, resumeDeliveries, Batch).Scan(&n); err != nil {
		return 0, fmt.Errorf("resume webhooks: %w", err)
	}
	if _, err := db.Exec(ctx, resumed); err != nil {
		return n, fmt.Errorf("resume webhooks: %w", err)
	}
	return n, nil
}

// The oldest of all, by primary key, whatever has become of them. If some were kept, an endpoint that
// is slower than its events could fill the batch with them, and nothing would be deleted for anyone.
const deleteOld = `
DELETE FROM webhook_deliveries WHERE id IN (
  SELECT d.id FROM (SELECT id, created_at FROM webhook_deliveries ORDER BY id LIMIT $1) d
  WHERE d.created_at < now() - $2::interval)`

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
// them each, and returns how many. Fewer than Batch: it is done.
func Clear(ctx context.Context, db *pgxpool.Pool) (n int, err error) {
	old, err := db.Exec(ctx, deleteOld, Batch, Retention)
	if err != nil {
		return 0, fmt.Errorf("delete old webhook deliveries: %w", err)
	}
	orphans, err := db.Exec(ctx, deleteOrphans, Batch)
	if err != nil {
		return 0, fmt.Errorf("delete deliveries of deleted webhook endpoints: %w", err)
	}
	if _, err := db.Exec(ctx, deleteEndpoints); err != nil {
		return 0, fmt.Errorf("delete webhook endpoints: %w", err)
	}
	return int(old.RowsAffected() + orphans.RowsAffected()), nil
}

// What is due and waits for an earlier delivery was put off, so it does not count. Nor does what a
// tenant that moves has left: it is sent by its next cluster.
const backlog = `
SELECT coalesce(extract(epoch FROM now() - min(d.next_try_at)), 0)::float8,
       (SELECT count(*) FROM webhook_endpoints WHERE state = 'disabled'
          AND tenant_id <> ALL(ARRAY(SELECT tenant_id FROM tenant_moves)))
FROM webhook_endpoints e CROSS JOIN LATERAL (
  SELECT d.next_try_at FROM webhook_deliveries d
  WHERE d.endpoint_id = e.id AND d.state = 'pending' AND d.next_try_at <= now()
  ORDER BY d.next_try_at LIMIT 1) d
WHERE e.state = 'enabled' AND e.tenant_id <> ALL(ARRAY(SELECT tenant_id FROM tenant_moves))`

// Backlog returns for how long the oldest delivery that is due has been waiting to be claimed, and how
// many endpoints are disabled.
func Backlog(ctx context.Context, db *pgxpool.Pool) (oldest time.Duration, disabled int64, err error) {
	var seconds float64
	if err := db.QueryRow(ctx, backlog).Scan(&seconds, &disabled); err != nil {
		return 0, 0, fmt.Errorf("measure webhooks: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), disabled, nil
}

// The endpoints' first due deliveries, as in backlog; and the newest deliveries, by primary key.
const due = `
SELECT (SELECT min(d.next_try_at)
        FROM webhook_endpoints e CROSS JOIN LATERAL (
          SELECT d.next_try_at FROM webhook_deliveries d
          WHERE d.endpoint_id = e.id AND d.state = 'pending' AND d.next_try_at <= now()
          ORDER BY d.next_try_at LIMIT 1) d
        WHERE e.state = 'enabled' AND e.tenant_id <> ALL(ARRAY(SELECT tenant_id FROM tenant_moves))),
       (SELECT max(first_tried_at) FROM (
          SELECT first_tried_at FROM webhook_deliveries ORDER BY id DESC LIMIT 100) newest)`

// Due returns since when the first delivery that is due has waited to be claimed; zero: none is due.
// And when a call of one of the newest 100 was first recorded; zero: never.
func Due(ctx context.Context, db *pgxpool.Pool) (since, tried time.Time, err error) {
	var first, last *time.Time
	if err := db.QueryRow(ctx, due).Scan(&first, &last); err != nil {
		return since, tried, fmt.Errorf("look for webhooks that are due: %w", err)
	}

	if first != nil {
		since = *first
	}
	if last != nil {
		tried = *last
	}
	return since, tried, nil
}

package tenantmove

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrBusy means that the tenant did not come to rest in time. It goes on leaving.
var ErrBusy = errors.New("the tenant did not come to rest")

const pollEvery = 200 * time.Millisecond

// Every transaction of this database that is open now. Those that begin later see the note.
const openTransactions = `
SELECT coalesce(array_agg(l.virtualtransaction), '{}')
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock'
  AND a.datname = current_database() AND pid <> pg_backend_pid()
  AND coalesce(a.backend_type, 'client backend') = 'client backend'`

const stillOpen = `
SELECT count(*) FROM pg_locks
WHERE locktype = 'virtualxid' AND mode = 'ExclusiveLock' AND virtualtransaction = ANY($1::text[])`

// waitForOpen waits until the transactions have ended that may not have seen that the tenant leaves.
func waitForOpen(ctx context.Context, db *pgxpool.Pool) error {
	var open []string
	if err := db.QueryRow(ctx, openTransactions).Scan(&open); err != nil {
		return fmt.Errorf("list open transactions: %w", err)
	}
	return poll(ctx, func() (string, error) {
		var n int
		err := db.QueryRow(ctx, stillOpen, open).Scan(&n)
		return some(n, "transactions are open that began before"), err
	})
}

// By psp_operations_due, outbox_events_id, outbox_events_xid and webhook_deliveries_due. What no relay
// has passed, and stragglers, as outbox_events_drop_partitions tells them.
const onItsWay = `
SELECT
  (SELECT count(*) FROM psp_operations WHERE state IN ('pending', 'unknown') AND tenant_id = $1),
  (SELECT count(*) FROM (
     SELECT o.id FROM outbox_cursors c JOIN outbox_events o ON o.id > c.last_id WHERE o.tenant_id = $1
     UNION
     SELECT o.id FROM outbox_cursors c JOIN outbox_events o ON o.xid >= pg_snapshot_xmin(c.seen)
     WHERE o.tenant_id = $1 AND NOT pg_visible_in_snapshot(o.xid, c.seen)) unsent)
  + (SELECT count(*) FROM outbox_cursors WHERE chunk_after IS NOT NULL)
  + CASE WHEN EXISTS (SELECT FROM outbox_cursors) THEN 0 ELSE 1 END,
  (SELECT count(*) FROM outbox_dead_letters WHERE tenant_id = $1 AND state IN ('parked', 'retry')),
  (SELECT count(*) FROM webhook_endpoints e JOIN webhook_deliveries d ON d.endpoint_id = e.id
   WHERE e.tenant_id = $1 AND d.state = 'pending' AND d.in_flight AND d.next_try_at > now())`

// waitForRest waits until nothing of the tenant is on its way.
func waitForRest(ctx context.Context, db *pgxpool.Pool, tenant uuid.UUID) error {
	err := poll(ctx, func() (string, error) {
		var operations, events, letters, calls int
		err := db.QueryRow(ctx, onItsWay, tenant).Scan(&operations, &events, &letters, &calls)
		switch {
		case operations > 0:
			return some(operations, "operations are with the PSP; oncepay psp list shows them"), err
		case events > 0:
			return some(events, "events wait for the relay"), err
		case letters > 0:
			return some(letters, "dead letters wait for a decision; relay dead-letters list shows them"), err
		}
		return some(calls, "webhooks are being sent"), err
	})
	if err != nil {
		return err
	}
	return waitForWebhooks(ctx, db, tenant)
}

// Events that the worker's inbox does not have, of tenants with webhooks. It reads the days of the
// outbox since the oldest endpoint was made, once.
const unread = `
SELECT o.event_id FROM outbox_events o
WHERE o.tenant_id = $1 AND o.aggregate_type IN ('payments', 'webhook-endpoints')
  AND o.created_at >= (SELECT min(created_at) FROM webhook_endpoints WHERE tenant_id = $1 AND state <> 'deleted')
  AND o.created_at >= (SELECT day FROM inbox_horizon)
  AND NOT EXISTS (SELECT FROM inbox_events i WHERE i.consumer = 'webhooks' AND i.event_id = o.event_id)
  AND NOT EXISTS (SELECT FROM inbox_dead_letters l WHERE l.consumer = 'webhooks' AND l.event_id = o.event_id AND l.state IN ('applied', 'skipped'))`

const stillUnread = `
SELECT count(*) FROM unnest($1::uuid[]) o(event_id)
WHERE NOT EXISTS (SELECT FROM inbox_events i WHERE i.consumer = 'webhooks' AND i.event_id = o.event_id)
  AND NOT EXISTS (SELECT FROM inbox_dead_letters l WHERE l.consumer = 'webhooks' AND l.event_id = o.event_id AND l.state IN ('applied', 'skipped'))`

func waitForWebhooks(ctx context.Context, db *pgxpool.Pool, tenant uuid.UUID) error {
	rows, _ := db.Query(ctx, unread, tenant) // CollectRows has the query's error, too
	events, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find events that are no webhooks yet: %w", err)
	}
	return poll(ctx, func() (string, error) {
		var n int
		err := db.QueryRow(ctx, stillUnread, events).Scan(&n)
		return some(n, "events wait for the worker to make webhooks of them"), err
	})
}

func some(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}

// poll asks until the answer is empty, or ctx ends.
func poll(ctx context.Context, ask func() (string, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()

	for last := "not asked"; ; {
		what, err := ask()
		switch {
		case ctx.Err() != nil: // a query that was cancelled says so in its own words
			return fmt.Errorf("%w in time: %s", ErrBusy, last)
		case err != nil:
			return fmt.Errorf("wait for the tenant to come to rest: %w", err)
		case what == "":
			return nil
		}
		last = what

		select {
		case <-ctx.Done():
			return fmt.Errorf("%w in time: %s", ErrBusy, last)
		case <-tick.C:
		}
	}
}

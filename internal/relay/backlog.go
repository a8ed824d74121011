package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Backlog is what is still to be sent.
type Backlog struct {
	Events           int64         // above the cursor; an upper bound: ids that were drawn and rolled back count as well
	OldestAge        time.Duration // of the first of them or, if there is none, of the first that committed late below it; zero: all is sent, parked ones aside
	DeadLetters      int64         // events that the broker refused and nobody has decided on
	ParkedAggregates int64         // aggregates of which nothing goes out
}

// Both ends of an index. Without a cursor all that is kept is still to be sent.
const measureBacklog = `
SELECT clock_timestamp(), greatest(coalesce((SELECT max(id) FROM outbox_events), 0) - coalesce(c.last_id, 0), 0),
       (SELECT created_at FROM outbox_events WHERE id > coalesce(c.last_id, 0) ORDER BY id LIMIT 1),
       coalesce(c.last_id, 0), coalesce(c.seen, pg_current_snapshot())::text, coalesce(c.chunk_after, 0), coalesce(c.chunk_seen::text, '')
FROM (VALUES (1)) one LEFT JOIN outbox_cursors c ON c.relay = $1`

const measureParked = `
SELECT count(*) FILTER (WHERE refusal IS NOT NULL AND state = 'parked'), count(DISTINCT (aggregate_type, aggregate_id))
FROM outbox_dead_letters WHERE relay = $1 AND state IN ('parked', 'retry')`

// MeasureBacklog reports what the relays of this name have still to send. Any of them may ask, leader or not, and so may anybody else.
func MeasureBacklog(ctx context.Context, db *pgxpool.Pool, relay string) (Backlog, error) {
	backlog, err := measure(ctx, db, relay)
	if err != nil {
		return Backlog{}, fmt.Errorf("measure outbox backlog: %w", err)
	}
	return backlog, nil
}

func measure(ctx context.Context, db *pgxpool.Pool, relay string) (backlog Backlog, err error) {
	var now time.Time // the database's clock, as created_at is
	var first *time.Time
	var p Position
	err = db.QueryRow(ctx, measureBacklog, relay).Scan(&now, &backlog.Events, &first, &p.Last, &p.Seen, &p.ChunkAfter, &p.ChunkSeen)
	if err != nil {
		return Backlog{}, err
	}
	if first == nil { // else stragglers would be looked for among all that was written since, which an outage makes much
		var b batch
		if err := b.read(ctx, db, newStatements(1), 1, p); err != nil {
			return Backlog{}, err
		}
		if b.n > 0 {
			first = &b.found[0].CreatedAt
		}
	}
	if first != nil {
		backlog.OldestAge = max(now.Sub(*first), 0) // a writer may name another time
	}
	err = db.QueryRow(ctx, measureParked, relay).Scan(&backlog.DeadLetters, &backlog.ParkedAggregates)
	return backlog, err
}

package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Backlog is what is still to be sent. OldestAge is that of the first event above the cursor or, if
// there is none, of the first that committed late below it; zero: all is sent, parked events aside.
type Backlog struct {
	Events           int64 // above the cursor, at most: rolled-back ids count as well
	OldestAge        time.Duration
	DeadLetters      int64 // refused events that wait for a decision
	ParkedAggregates int64 // aggregates of which nothing is sent
}

// Both ends of an index. Without a cursor, everything that is kept is still to be sent.
const measureBacklog = `
SELECT clock_timestamp(),
       greatest(coalesce((SELECT max(id) FROM outbox_events), 0) - coalesce(c.last_id, 0), 0),
       (SELECT created_at FROM outbox_events WHERE id > coalesce(c.last_id, 0) ORDER BY id LIMIT 1),
       coalesce(c.last_id, 0), coalesce(c.seen, pg_current_snapshot())::text,
       coalesce(c.chunk_after, 0), coalesce(c.chunk_seen::text, ''), d.refused, d.aggregates
FROM (SELECT count(*) FILTER (WHERE refusal IS NOT NULL AND state = 'parked') refused,
             count(DISTINCT (aggregate_type, aggregate_id)) aggregates
      FROM outbox_dead_letters WHERE relay = $1 AND state IN ('parked', 'retry')) d
LEFT JOIN outbox_cursors c ON c.relay = $1`

// MeasureBacklog returns what the relays of this name have still to send. Anyone may ask.
func MeasureBacklog(ctx context.Context, db *pgxpool.Pool, relay string) (b Backlog, err error) {
	var now time.Time // by the database's clock, as created_at is
	var first *time.Time
	var p Position
	err = db.QueryRow(ctx, measureBacklog, relay).Scan(&now, &b.Events, &first, &p.Last, &p.Seen,
		&p.ChunkAfter, &p.ChunkSeen, &b.DeadLetters, &b.ParkedAggregates)
	if err != nil {
		return Backlog{}, fmt.Errorf("measure outbox backlog: %w", err)
	}

	// Only without newer events: after an outage, stragglers would be looked for among very many.
	if first == nil {
		var late batch
		if err := late.read(ctx, db, 1, p); err != nil {
			return Backlog{}, fmt.Errorf("measure outbox backlog: %w", err)
		}
		if late.n > 0 {
			first = &late.found[0].CreatedAt
		}
	}

	if first != nil {
		b.OldestAge = max(now.Sub(*first), 0) // a writer may set created_at
	}

	return b, nil
}

// Cursor is where the relays of one name are, and who leads them.
type Cursor struct {
	Relay        string     `json:"relay"`
	LastID       int64      `json:"last_id"`
	MovedAt      time.Time  `json:"moved_at"`
	Holder       string     `json:"holder"` // the last leader; it leads while its lease lasts
	LeaseUntil   *time.Time `json:"lease_until"`
	Leads        bool       `json:"leads"`
	FencingToken int64      `json:"fencing_token"`
	Stragglers   int64      `json:"stragglers"` // events below the cursor that are still to be sent
}

// Stragglers of a chunk that was sent do not count. All that was written since the oldest transaction
// of the snapshot is looked at, which the relay itself cannot afford.
const readCursors = `
SELECT c.relay, c.last_id, c.moved_at, c.holder, nullif(c.lease_until, '-infinity'),
  c.lease_until > clock_timestamp(), c.fencing_token,
  (SELECT count(*) FROM outbox_events
   WHERE xid >= pg_snapshot_xmin(c.seen) AND xid < pg_snapshot_xmax(pg_current_snapshot())
     AND id <= c.last_id AND NOT pg_visible_in_snapshot(xid, c.seen)
     AND NOT coalesce(id <= c.chunk_after AND pg_visible_in_snapshot(xid, c.chunk_seen), false))
FROM outbox_cursors c ORDER BY c.relay`

// Cursors returns the cursors of all relays, in the caller's transaction.
func Cursors(ctx context.Context, tx pgx.Tx) ([]Cursor, error) {
	rows, _ := tx.Query(ctx, readCursors) // CollectRows returns its error
	cursors, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Cursor])
	if err != nil {
		return nil, fmt.Errorf("read cursors: %w", err)
	}
	return cursors, nil
}

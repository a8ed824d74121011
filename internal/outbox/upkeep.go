package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DaysAhead is for how many days to come there are partitions: a week of nobody looking.
const DaysAhead = 7

// Partitions is what KeepPartitions did.
type Partitions struct{ Made, Dropped int }

// KeepPartitions makes the outbox's partitions of the coming days and drops those that are older than keep and were sent
// by every relay, in two transactions. A writer waits at most 50 ms for it; when it would wait longer itself, it gives up
// with SQLSTATE 55P03: call it again.
func KeepPartitions(ctx context.Context, db *pgxpool.Pool, keep time.Duration) (p Partitions, err error) {
	if p.Made, err = MakePartitions(ctx, db); err != nil {
		return p, err
	}
	if err := db.QueryRow(ctx, `SELECT outbox_events_drop_partitions($1)`, keep).Scan(&p.Dropped); err != nil {
		return p, fmt.Errorf("drop outbox partitions: %w", err)
	}
	return p, nil
}

// Beginner starts transactions. A *pgxpool.Pool is one.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// MakePartitions makes the outbox's partitions of today and of the coming days, and returns how many it made. It holds up no
// reader and no writer, and many may call it at once.
func MakePartitions(ctx context.Context, db Beginner) (made int, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT outbox_events_make_partitions($1)`, DaysAhead).Scan(&made)
	})
	if err != nil {
		return 0, fmt.Errorf("make outbox partitions: %w", err)
	}
	return made, nil
}

// MissingDay reports whether err is that of a transaction whose events found no partition for their day, because nothing made
// partitions for a week. Roll it back, call MakePartitions and run it again.
func MissingDay(err error) bool {
	var e *pgconn.PgError
	// A CHECK constraint has the same code (check_violation), and a name.
	return errors.As(err, &e) && e.Code == "23514" && e.TableName == "outbox_events" && e.ConstraintName == ""
}

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

package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DaysAhead is for how many days to come there are partitions: a week of nobody looking.
const DaysAhead = 7

// Partitions is what KeepPartitions did and found.
type Partitions struct {
	Made, Dropped int
	DefaultRows   int64 // rows in the default partition, up to 1,000; more than none is an alarm
}

// KeepPartitions makes the outbox's partitions of the coming days and drops those that are older than keep and were sent
// by every relay, in two transactions. A writer waits at most 50 ms for it; when it would wait longer itself, it gives up
// with SQLSTATE 55P03: call it again.
func KeepPartitions(ctx context.Context, db *pgxpool.Pool, keep time.Duration) (p Partitions, err error) {
	err = db.QueryRow(ctx, `SELECT made, default_rows FROM outbox_events_make_partitions($1)`, DaysAhead).
		Scan(&p.Made, &p.DefaultRows)
	if err != nil {
		return Partitions{}, fmt.Errorf("make outbox partitions: %w", err)
	}
	if err := db.QueryRow(ctx, `SELECT outbox_events_drop_partitions($1)`, keep).Scan(&p.Dropped); err != nil {
		return p, fmt.Errorf("drop outbox partitions: %w", err)
	}
	return p, nil
}

// Backlog is what is still to be sent.
type Backlog struct {
	Events    int64         // upper bound: ids that were drawn and rolled back count as well
	OldestAge time.Duration // age of the first of them; zero: there is none
}

// Both are reads of one end of an index.
const measureBacklog = `
SELECT coalesce(greatest((SELECT max(id) FROM outbox_events) - c.last_id, 0), 0),
       coalesce(clock_timestamp() - (SELECT created_at FROM outbox_events WHERE id > c.last_id ORDER BY id LIMIT 1), '0')
FROM (SELECT coalesce((SELECT last_id FROM outbox_cursors WHERE relay = $1), 0) AS last_id) c`

// MeasureBacklog reports what the relay of this name has still to send. Stragglers below its cursor are not counted.
func MeasureBacklog(ctx context.Context, db *pgxpool.Pool, relay string) (Backlog, error) {
	var b Backlog
	if err := db.QueryRow(ctx, measureBacklog, relay).Scan(&b.Events, &b.OldestAge); err != nil {
		return Backlog{}, fmt.Errorf("measure outbox backlog: %w", err)
	}
	return b, nil
}

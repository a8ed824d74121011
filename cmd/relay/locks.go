package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// Every role sees all of pg_locks and, of the sessions of others, their database. waitstart is null
// for an instant after a wait has begun.
const lockWaits = `
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(l.waitstart)), 0)::float8
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE NOT l.granted AND a.datname = current_database()`

// measureLocks counts the sessions that wait for a lock. It logs nothing when the database is down:
// the relay does.
func measureLocks(ctx context.Context, db *pgxpool.Pool, metrics *telemetry.Locks) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	var sessions int64
	var oldest float64
	if err := db.QueryRow(ctx, lockWaits).Scan(&sessions, &oldest); err != nil {
		metrics.NotMeasured()
		return
	}
	metrics.Waiting(sessions, time.Duration(max(oldest, 0)*float64(time.Second)))
}

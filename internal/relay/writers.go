package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Writers watches for transactions that have written something and stay open: their events, if they wrote any, wait for them,
// and Postgres can clean up nothing that is newer. Its zero value is ready.
type Writers struct {
	since map[string]time.Time // when a transaction was first seen, by its id
}

// The ids of other roles' transactions are shown to everybody, when they began is not. A transaction that was prepared keeps its id.
const openWriters = `
SELECT backend_xid::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND datname = current_database()
UNION
SELECT transaction::text FROM pg_prepared_xacts WHERE database = current_database()`

// Oldest returns for how long the oldest open transaction of this database that has written something has been seen by this
// Writers, to which no right is needed. Zero: there is none, or none that an earlier call saw. Call it regularly, one call at a time.
func (w *Writers) Oldest(ctx context.Context, db *pgxpool.Pool) (time.Duration, error) {
	rows, _ := db.Query(ctx, openWriters) // CollectRows returns its error
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, fmt.Errorf("look for open transactions: %w", err)
	}
	now, since, oldest := time.Now(), map[string]time.Time{}, time.Duration(0)
	for _, xid := range open {
		first, known := w.since[xid]
		if !known {
			first = now
		}
		since[xid] = first
		oldest = max(oldest, now.Sub(first))
	}
	w.since = since
	return oldest, nil
}

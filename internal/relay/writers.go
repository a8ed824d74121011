package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Writers watches for transactions that have written something and stay open: their events wait for
// them, and Postgres can vacuum nothing that is newer. The zero value is ready to use.
type Writers struct {
	since map[string]time.Time // when a transaction was first seen, by its id
}

// Every role sees the ids of other roles' transactions, but not when they began. A prepared
// transaction keeps its id.
const openWriters = `
SELECT backend_xid::text FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND datname = current_database()
UNION
SELECT transaction::text FROM pg_prepared_xacts WHERE database = current_database()`

// Oldest returns for how long this Writers has seen the oldest open transaction that has written
// something; zero: none, or none that an earlier call saw. It needs no rights. Call it regularly,
// one call at a time.
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

package postgres

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Need is the most that a program takes from the server at its peak, by its settings.
type Need struct {
	Connections int
	Locks       int // advisory ones, of all its transactions together
}

// What the server has for programs, and the connections that others have now. reserved_connections
// is of Postgres 16.
const selectLimits = `
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0),
    (SELECT count(*) FROM pg_stat_activity
     WHERE usesysid IS NOT NULL AND datid IS NOT NULL AND pid <> pg_backend_pid()),
    current_setting('max_locks_per_transaction')::int
        * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int),
    pg_backend_pid()`

// CheckLimits warns if the server cannot give what a program needs at its peak. Call it when the
// program has one connection.
//
// It does not refuse: what is missing at a peak makes requests fail, which are repeated, and nothing
// wrong is written. A program that did not start on the standby of a failover, which has fewer
// connections, would be worse.
func CheckLimits(ctx context.Context, db *pgxpool.Pool, need Need, log *slog.Logger) error {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("read the server's limits: %w", err)
	}
	defer conn.Release()

	var allowed, others, locks int
	var pid uint32
	if err := conn.QueryRow(ctx, selectLimits).Scan(&allowed, &others, &locks, &pid); err != nil {
		return fmt.Errorf("read the server's limits: %w", err)
	}

	// Behind a pooler, which makes up the process id, the pooler has the connections.
	pooled := conn.Conn().PgConn().PID() != pid
	if !pooled && need.Connections > allowed-others {
		log.WarnContext(ctx, "the server may run out of connections: "+
			"raise max_connections, run fewer instances or give them smaller pools",
			"this_instance", need.Connections, "others_now", others, "server_allows", allowed)
	}

	// Twice: during a deploy, the instance that is replaced runs beside the new one.
	if 2*need.Locks > locks {
		log.WarnContext(ctx, "the server may run out of locks: "+
			"raise max_locks_per_transaction, or lower BATCH_MAX or COMMITTERS",
			"this_instance", need.Locks, "server_has", locks)
	}
	return nil
}

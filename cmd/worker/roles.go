package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The worker changes some columns of accounts and payments, and adds events.
const rights = `
SELECT current_user,
    has_column_privilege('accounts', 'held_minor', 'UPDATE')
    AND has_column_privilege('payments', 'status', 'UPDATE')
    AND has_table_privilege('outbox_events', 'INSERT'),
    coalesce((SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
        WHERE c.oid IN (to_regclass('accounts'), to_regclass('payments'),
            to_regclass('ledger_entries'), to_regclass('outbox_events'))
          AND has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE')), '')`

// checkRole refuses a login that cannot do the work, and warns if a bug in the worker could destroy
// what was written.
func checkRole(ctx context.Context, db *pgxpool.Pool, log *slog.Logger) error {
	var role, tables string
	var may bool
	if err := db.QueryRow(ctx, rights).Scan(&role, &may, &tables); err != nil {
		return fmt.Errorf("check the role: %w", err)
	}

	if !may {
		return fmt.Errorf("%s may not release authorizations: "+
			"give DATABASE_URL a login with the role worker", role)
	}
	if tables != "" {
		log.WarnContext(ctx, "the role may do more than it needs: "+
			"give DATABASE_URL a login with the role worker", "role", role, "tables", tables)
	}
	return nil
}

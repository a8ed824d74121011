package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
)

// The worker changes some columns of accounts and payments, and adds events. For cards it also changes
// operations and refunds, and adds ledger entries.
const rights = `
SELECT current_user,
    has_column_privilege('accounts', 'held_minor', 'UPDATE')
    AND has_column_privilege('payments', 'status', 'UPDATE')
    AND has_table_privilege('outbox_events', 'INSERT'),
    has_column_privilege('psp_operations', 'state', 'UPDATE')
    AND has_column_privilege('payments', 'settled_at', 'UPDATE')
    AND has_column_privilege('refunds', 'settled_at', 'UPDATE')
    AND has_table_privilege('ledger_entries', 'INSERT'),
    coalesce((SELECT string_agg(c.relname, ', ' ORDER BY c.relname) FROM pg_class c
        WHERE c.oid IN (to_regclass('accounts'), to_regclass('payments'), to_regclass('refunds'),
            to_regclass('ledger_entries'), to_regclass('outbox_events'), to_regclass('psp_operations'))
          AND has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE')), '')`

// checkRole refuses a login that cannot do the work, and warns if a bug in the worker could destroy
// what was written.
func checkRole(
	ctx context.Context, db *pgxpool.Pool, cfg config.Worker, log *slog.Logger,
) error {
	var role, tables string
	var mayRelease, maySettle bool
	err := db.QueryRow(ctx, rights).Scan(&role, &mayRelease, &maySettle, &tables)
	if err != nil {
		return fmt.Errorf("check the role: %w", err)
	}

	lacking := ""
	switch {
	case cfg.Does("expiry") && !mayRelease:
		lacking = "release authorizations"
	case cfg.Does("psp") && !(mayRelease && maySettle):
		lacking = "settle payments by card"
	}
	if lacking != "" {
		return fmt.Errorf("%s may not %s: give DATABASE_URL a login with the role worker",
			role, lacking)
	}

	if tables != "" {
		log.WarnContext(ctx, "the role may do more than it needs: "+
			"give DATABASE_URL a login with the role worker", "role", role, "tables", tables)
	}
	return nil
}

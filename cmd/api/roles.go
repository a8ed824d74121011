package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
)

// The tables with tenants' rows. migrations.Check reports missing ones.
const tenantTables = `
SELECT current_user, coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), '') FROM pg_class c
WHERE c.oid IN (to_regclass('accounts'), to_regclass('payments'), to_regclass('ledger_entries'),
    to_regclass('refunds'), to_regclass('payment_commands'), to_regclass('idempotency_keys'),
    to_regclass('webhook_endpoints'), to_regclass('webhook_deliveries')) AND `

// row_security_active knows whom row-level security exempts: superusers, owners and BYPASSRLS. A
// login with a second role has that role's policies too, so every policy in force must check the
// tenant. A login that may write is no reader either: it is api_write.
const seesEveryTenant = tenantTables + `(
    NOT row_security_active(c.oid)
    OR has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
    OR EXISTS (SELECT FROM pg_policy p
               WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('r', '*')
                 AND pg_get_expr(p.polqual, p.polrelid) !~ 'oncepay\.tenant'
                 AND EXISTS (SELECT FROM unnest(p.polroles) r WHERE r = 0 OR pg_has_role(r, 'USAGE'))))`

// checkReader refuses a login that would see every tenant's rows if one statement forgot its
// tenant, unless the operator allows it.
func checkReader(ctx context.Context, db *pgxpool.Pool, cfg config.API, log *slog.Logger) error {
	var role, tables string
	if err := db.QueryRow(ctx, seesEveryTenant).Scan(&role, &tables); err != nil {
		return fmt.Errorf("check the role of the read pool: %w", err)
	}

	switch {
	case tables == "":
		return nil
	case cfg.RowSecurity == "off":
		log.WarnContext(ctx,
			"row-level security does not apply to the read role (ROW_LEVEL_SECURITY=off)",
			"role", role, "tables", tables)
		return nil
	}

	return fmt.Errorf("row-level security does not apply to %s on %s: give DATABASE_READ_URL a login "+
		"with the role api_read and no other, or set ROW_LEVEL_SECURITY=off", role, tables)
}

// The API changes balances and the state of payments, on which it has rights by column, and nothing
// else.
const rewrites = tenantTables + `has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE')`

// checkWriter warns if a bug in the API could destroy what was written.
func checkWriter(ctx context.Context, db *pgxpool.Pool, log *slog.Logger) error {
	var role, tables string
	if err := db.QueryRow(ctx, rewrites).Scan(&role, &tables); err != nil {
		return fmt.Errorf("check the role of the write pool: %w", err)
	}

	if tables != "" {
		log.WarnContext(ctx, "the write role may do more than it needs: "+
			"give DATABASE_URL a login with the role api_write", "role", role, "tables", tables)
	}
	return nil
}

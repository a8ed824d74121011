package tenantmove

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// table is a table that moves, and which of its rows.
type table struct{ name, where string }

const (
	ofTenant = "tenant_id = $1"

	// What a look-up covers, and one more, as in prepare. Older days may not be dropped yet.
	keptDays = ` AND day >= (
SELECT (now() AT TIME ZONE 'utc' - keep)::date - 1 FROM idempotency_retention)`
)

// Moved are the tables that move, each after those that it refers to. ledger_entries are found by
// their key; idempotency_keys, payment_commands and psp_operations are read whole, once.
var moved = []table{
	{"tenants", "id = $1"},
	{"clients", ofTenant},
	{"credentials", "client_id IN (SELECT id FROM clients WHERE tenant_id = $1)"},
	{"accounts", ofTenant},
	{"payments", ofTenant},
	{"refunds", ofTenant},
	{"payment_commands", ofTenant},
	{"ledger_openings", ofTenant},
	{"ledger_entries", "account_id IN (SELECT id FROM accounts WHERE tenant_id = $1)"},
	{"idempotency_keys", ofTenant + keptDays},
	{"psp_operations", ofTenant},
	{"webhook_endpoints", ofTenant},
	{"webhook_deliveries", ofTenant},
}

// Left are the tables with a tenant that do not move: all events were sent, and their ids are the
// source's own.
var left = []string{"outbox_events", "outbox_dead_letters", "tenant_moves"}

// rows returns the query for the tenant's rows. COPY takes no arguments, so the id is written out.
func (t table) rows(columns string, tenant uuid.UUID) string {
	return "SELECT " + columns + " FROM " + t.name +
		" WHERE " + strings.ReplaceAll(t.where, "$1", "'"+tenant.String()+"'")
}

// An identity is drawn anew at the target, in the order of the rows.
const selectColumns = `
SELECT coalesce(string_agg(quote_ident(attname), ', ' ORDER BY attname) FILTER (WHERE attidentity = ''), ''),
  coalesce(string_agg(quote_ident(attname), ', ') FILTER (WHERE attidentity <> ''), '')
FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped`

// copyTable copies the tenant's rows of a table and compares what arrived.
func copyTable(ctx context.Context, source, target pgx.Tx, t table, tenant uuid.UUID) (int64, error) {
	var columns, order, theirs string
	if err := source.QueryRow(ctx, selectColumns, t.name).Scan(&columns, &order); err != nil {
		return 0, fmt.Errorf("read the columns of %s: %w", t.name, err)
	}
	if err := target.QueryRow(ctx, selectColumns, t.name).Scan(&theirs, nil); err != nil {
		return 0, fmt.Errorf("read the target's columns of %s: %w", t.name, err)
	}
	if columns != theirs {
		return 0, fmt.Errorf("%s has other columns at the target: migrate both to one version", t.name)
	}

	rows := t.rows(columns, tenant)
	if order != "" {
		rows += " ORDER BY " + order
	}
	if err := stream(ctx, source, target, "COPY ("+rows+") TO STDOUT",
		"COPY "+t.name+" ("+columns+") FROM STDIN"); err != nil {
		return 0, fmt.Errorf("copy %s: %w", t.name, err)
	}

	sent, err := digest(ctx, source, t, columns, tenant)
	if err != nil {
		return 0, err
	}
	arrived, err := digest(ctx, target, t, columns, tenant)
	if err != nil {
		return 0, err
	}
	if sent != arrived {
		return 0, fmt.Errorf("%s differs at the target: %d rows were sent, %d arrived",
			t.name, sent.rows, arrived.rows)
	}
	return arrived.rows, nil
}

// stream passes what one COPY says on to the other.
func stream(ctx context.Context, source, target pgx.Tx, from, to string) error {
	r, w := io.Pipe()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := source.Conn().PgConn().CopyTo(ctx, w, from)
		_ = w.CloseWithError(err) // nil is the end of the data
		return err
	})
	g.Go(func() error {
		_, err := target.Conn().PgConn().CopyFrom(ctx, r, to)
		_ = r.CloseWithError(err) // the writer must not wait for a reader that is gone
		return err
	})
	return g.Wait()
}

// sum is what two equal sets of rows have in common, whatever their order.
type sum struct {
	rows int64
	hash string
}

func digest(ctx context.Context, tx pgx.Tx, t table, columns string, tenant uuid.UUID) (s sum, err error) {
	query := `SELECT count(*), coalesce(sum(hashtextextended(r::text, 0)::numeric), 0)::text
FROM (` + t.rows(columns, tenant) + `) r`
	if err := tx.QueryRow(ctx, query).Scan(&s.rows, &s.hash); err != nil {
		return s, fmt.Errorf("compare %s: %w", t.name, err)
	}
	return s, nil
}

// The entries lead from the opening, which archived ones left, to the balance, without a gap.
const balancesAstray = `
SELECT count(*)
FROM (
  SELECT a.*, coalesce(o.entry_no, 0) AS opened, coalesce(o.balance_minor, 0) AS opening
  FROM accounts a LEFT JOIN ledger_openings o ON o.account_id = a.id
  WHERE a.tenant_id = $1) a
CROSS JOIN LATERAL (
  SELECT count(*) AS n, coalesce(max(entry_no), a.opened) AS last, coalesce(sum(amount_minor), 0) AS moved,
      coalesce(max(balance_after_minor) FILTER (WHERE entry_no = a.entry_count), a.opening) AS balance
  FROM ledger_entries WHERE account_id = a.id AND entry_no > a.opened) e
WHERE (a.balance_minor = a.opening + e.moved AND a.balance_minor = e.balance
    AND a.entry_count = a.opened + e.n AND a.entry_count = e.last) IS NOT TRUE`

func checkBalances(ctx context.Context, target pgx.Tx, tenant uuid.UUID) error {
	var n int64
	if err := target.QueryRow(ctx, balancesAstray, tenant).Scan(&n); err != nil {
		return fmt.Errorf("compare balances with entries: %w", err)
	}
	if n > 0 {
		return fmt.Errorf("%d accounts have another balance than their entries: run the reconciler first", n)
	}
	return nil
}

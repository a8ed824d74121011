package migrations_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

// What the schema consists of, one line each.
const describeSchema = `
SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '')
FROM information_schema.columns WHERE table_schema = 'public' AND table_name !~ '_[0-9]{8}$'
UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text !~ '_[0-9]{8}$'
UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename !~ '_[0-9]{8}$'
UNION ALL SELECT 'policy ' || tablename || ' ' || policyname || ' ' || roles::text || coalesce(qual, '') FROM pg_policies
UNION ALL SELECT 'may ' || grantee || ' ' || privilege_type || ' ' || table_name || '.' || column_name
FROM information_schema.column_privileges WHERE grantee IN ('api_write', 'api_read', 'relay', 'consumer', 'worker') AND table_name !~ '_[0-9]{8}$'
ORDER BY 1`

func TestDownAndUpAgain(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]int64{"to version 9": 9, "to version 7": 7, "to nothing": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			owner := db.Pool(t, "")
			before := lines(t, owner, describeSchema)
			down(t, db.URL, to)
			if diff := cmp.Diff(before, lines(t, owner, describeSchema)); diff == "" {
				t.Error("down changed nothing")
			}
			if _, err := migrations.Up(t.Context(), db.URL); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, lines(t, owner, describeSchema)); diff != "" {
				t.Error(diff)
			}
			if err := migrations.Check(t.Context(), owner); err != nil {
				t.Error(err)
			}
		})
	}
}

// Version 7 shows such a payment in full, and its own checks call the ledger wrong.
func TestDownLosesNoCaptureOrRefund(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]string{
		"captured in part": `1, 0, now(), now()`, "captured": `0, 0, now(), now()`, "refunded": `0, 5, NULL, NULL`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			owner := db.Pool(t, "")
			exec(t, owner, `INSERT INTO payments (status, released_minor, refunded_minor, authorization_expires_at, authorization_ended_at,
				id, tenant_id, version, amount_minor, currency, source_account, destination_account, processed_at,
				client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
				SELECT 'completed', `+values+`, gen_random_uuid(), gen_random_uuid(), 2, 5, 'USD', gen_random_uuid(), gen_random_uuid(), now(),
				gen_random_uuid(), 'k', '', 1, 'POST', '/x', 'r'`)
			if err := tryDown(t, db.URL, 7); code(err) != "55000" {
				t.Errorf("it went down: %v", err)
			}
			exec(t, owner, `SELECT released_minor, refunded_minor FROM payments`)
		})
	}
}

func down(t *testing.T, url string, to int64) {
	t.Helper()
	if err := tryDown(t, url, to); err != nil {
		t.Fatal(err)
	}
}

func tryDown(t *testing.T, url string, to int64) error {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.DownTo(t.Context(), to)
	return err
}

func lines(t *testing.T, db *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The statements of version 7, whose programs go on while a deploy is under way.
const (
	insertPayment7 = `
INSERT INTO payments (id, tenant_id, status, decline_code, version, amount_minor, currency,
    source_account, destination_account, description, metadata, client_reference, processed_at,
    client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
VALUES ($1, $2, $3, $4, 1, 5, 'USD', $2, $1, '', '{}', '', now(), $2, 'k', '\x00', 1, 'POST', '/x', 'r')`

	insertEntry7 = `
INSERT INTO ledger_entries (account_id, tenant_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
VALUES ($1, gen_random_uuid(), 1, gen_random_uuid(), gen_random_uuid(), 'USD', 5, 5, now())`

	updateBalance7 = `
UPDATE accounts SET balance_minor = $2, entry_count = entry_count + 1 WHERE id = $1`
)

func TestOlderProgramWorksOnThisSchema(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner, api := db.Pool(t, ""), db.Pool(t, "api_write")
	id, tenant := uuid.New(), uuid.New()
	exec(t, owner, `INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, held_minor) VALUES ($1, $2, 'customer', 'USD', 100, 30)`, id, tenant)

	exec(t, api, insertPayment7, uuid.New(), tenant, "completed", "")
	exec(t, api, insertPayment7, uuid.New(), tenant, "declined", "insufficient-funds")
	exec(t, api, insertEntry7, id)
	exec(t, api, updateBalance7, id, 30)

	// It knows of no holds: the table refuses what is held.
	if _, err := api.Exec(t.Context(), updateBalance7, id, 29); code(err) != "23514" {
		t.Errorf("it spends what is held: %v", err)
	}
	var captured int
	if err := owner.QueryRow(t.Context(), `SELECT sum(amount_minor - released_minor) FROM payments WHERE status = 'completed'`).Scan(&captured); err != nil || captured != 5 {
		t.Errorf("captured %d of its payment of 5: %v", captured, err)
	}
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// All that each role may do with tables: anything more is a mistake.
func TestWorkerMayDoItsWorkAndNothingElse(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	const privileges = `
SELECT privilege_type || ' ' || table_name FROM information_schema.role_table_grants WHERE grantee = 'worker'
UNION SELECT privilege_type || ' ' || table_name || '.' || column_name FROM information_schema.column_privileges c
WHERE grantee = 'worker' AND NOT EXISTS (SELECT FROM information_schema.role_table_grants t
    WHERE t.grantee = c.grantee AND t.table_name = c.table_name AND t.privilege_type = c.privilege_type)
UNION SELECT 'EXECUTE ' || routine_name FROM information_schema.role_routine_grants WHERE grantee = 'worker'
ORDER BY 1`
	want := []string{
		"EXECUTE outbox_events_make_partitions",
		"INSERT ledger_entries", "INSERT outbox_events",
		"SELECT accounts", "SELECT goose_db_version", "SELECT ledger_entries", "SELECT ledger_openings", "SELECT payments",
		"SELECT psp_operations", "SELECT refunds", "SELECT schema_files", "SELECT tenant_moves",
		"UPDATE accounts.balance_minor", "UPDATE accounts.entry_count", "UPDATE accounts.held_minor",
		"UPDATE payments.authorization_ended_at", "UPDATE payments.decline_code", "UPDATE payments.refunded_minor",
		"UPDATE payments.refunding_minor", "UPDATE payments.released_minor", "UPDATE payments.settled_at",
		"UPDATE payments.status", "UPDATE payments.version",
		"UPDATE psp_operations.code", "UPDATE psp_operations.ended_at", "UPDATE psp_operations.first_tried_at",
		"UPDATE psp_operations.last_error", "UPDATE psp_operations.next_try_at", "UPDATE psp_operations.reference",
		"UPDATE psp_operations.resolved_by", "UPDATE psp_operations.state", "UPDATE psp_operations.token", "UPDATE psp_operations.tries",
		"UPDATE refunds.decline_code", "UPDATE refunds.settled_at", "UPDATE refunds.status",
	}
	want = append(want, // of webhooks
		"DELETE inbox_sequences", "DELETE webhook_deliveries", "DELETE webhook_endpoints", "EXECUTE inbox_events_drop_partitions",
		"EXECUTE inbox_events_make_partitions", "INSERT inbox_dead_letters", "INSERT inbox_events", "INSERT inbox_sequences",
		"INSERT webhook_deliveries", "SELECT inbox_dead_letters", "SELECT inbox_events", "SELECT inbox_horizon",
		"SELECT inbox_sequences", "SELECT webhook_deliveries", "SELECT webhook_endpoints", "UPDATE inbox_dead_letters",
		"UPDATE inbox_sequences", "UPDATE webhook_deliveries.ended_at", "UPDATE webhook_deliveries.first_tried_at",
		"UPDATE webhook_deliveries.in_flight", "UPDATE webhook_deliveries.last_error", "UPDATE webhook_deliveries.last_status",
		"UPDATE webhook_deliveries.next_try_at", "UPDATE webhook_deliveries.state", "UPDATE webhook_deliveries.token",
		"UPDATE webhook_deliveries.tries", "UPDATE webhook_endpoints.disabled_reason", "UPDATE webhook_endpoints.event_count",
		"UPDATE webhook_endpoints.failing_since", "UPDATE webhook_endpoints.resuming", "UPDATE webhook_endpoints.state",
		"UPDATE webhook_endpoints.state_since",
	)
	slices.Sort(want)
	if diff := cmp.Diff(want, lines(t, db.Pool(t, ""), privileges)); diff != "" {
		t.Error(diff)
	}
}

// No query here names a tenant.
func TestRefundsAreTheTenantsOwn(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	api, read := db.Pool(t, "api_write"), db.Pool(t, "api_read")
	mine, theirs := uuid.New(), uuid.New()
	for _, tenant := range []uuid.UUID{mine, theirs, theirs} {
		exec(t, api, `INSERT INTO refunds (id, tenant_id, payment_id, payment_version, status, amount_minor, currency, source_account, destination_account, processed_at)
			VALUES (gen_random_uuid(), $1, gen_random_uuid(), 2, 'completed', 1, 'USD', gen_random_uuid(), gen_random_uuid(), now())`, tenant)
	}
	for tenant, want := range map[string]int{"": 0, mine.String(): 1, theirs.String(): 2} {
		err := pgx.BeginFunc(t.Context(), read, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SELECT set_config('oncepay.tenant', $1, true)`, tenant); err != nil {
				return err
			}
			var got int
			err := tx.QueryRow(t.Context(), `SELECT count(*) FROM refunds`).Scan(&got)
			if got != want {
				t.Errorf("tenant %q sees %d refunds, want %d", tenant, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}

	// With a policy for nobody as well: even a grant by mistake would show nothing.
	exec(t, db.Pool(t, ""), `GRANT SELECT ON payment_commands TO api_read`)
	exec(t, api, `INSERT INTO payment_commands (tenant_id, payment_id, version, client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id, processed_at)
		VALUES ($1, $1, 2, $1, 'k', '', 1, 'POST', '/x', 'r', now())`, mine)
	var seen int
	if err := read.QueryRow(context.Background(), `SELECT count(*) FROM payment_commands`).Scan(&seen); err != nil || seen != 0 {
		t.Errorf("a reader sees %d commands: %v", seen, err)
	}
}

// The table keeps what decide promises, should decide be wrong.
func TestPaymentsRefuseImpossibleStates(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	for state, possible := range map[string]bool{
		`'completed', 0, 0, NULL, NULL`:    true,
		`'completed', 1, 4, now(), now()`:  true,
		`'authorized', 0, 0, now(), NULL`:  true,
		`'expired', 0, 0, now(), now()`:    true,
		`'completed', 1, 5, now(), now()`:  false, // more is refunded than was captured
		`'completed', 5, 0, now(), now()`:  false, // nothing is captured
		`'completed', 0, -1, NULL, NULL`:   false,
		`'completed', 0, 0, now(), NULL`:   false,
		`'authorized', 0, 0, NULL, NULL`:   false,
		`'authorized', 0, 0, now(), now()`: false,
		`'canceled', 1, 0, now(), now()`:   false,
		`'canceled', 0, 1, now(), now()`:   false,
		`'canceled', 0, 0, NULL, NULL`:     false,
		`'refunded', 0, 0, NULL, NULL`:     false,
		`'declined', 0, 0, now(), now()`:   false,
	} {
		_, err := owner.Exec(t.Context(), `INSERT INTO payments (status, released_minor, refunded_minor, authorization_expires_at, authorization_ended_at,
			id, tenant_id, decline_code, version, amount_minor, currency, source_account, destination_account, processed_at,
			client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
			SELECT column1, column2, column3, column4::timestamptz, column5::timestamptz, gen_random_uuid(), gen_random_uuid(), CASE column1 WHEN 'declined' THEN 'x' ELSE '' END, 1, 5, 'USD', gen_random_uuid(), gen_random_uuid(), now(),
			gen_random_uuid(), 'k', '', 1, 'POST', '/x', 'r' FROM (VALUES (`+state+`)) s`)
		if want := map[bool]string{true: "", false: "23514"}[possible]; code(err) != want || possible && err != nil {
			t.Errorf("%s: %v", state, err)
		}
	}
}

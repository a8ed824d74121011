package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last    int64 // written behind what is applied; zero: nothing is
		applied bool
		oldest  int64 // program that the schema serves; zero: the file does not say
		want    string
	}{
		"as it should be":        {},
		"older":                  {migrations.Version(), false, 0, "run `migrate up`"}, // the last file was rolled back
		"newer":                  {migrations.Version() + 1, true, migrations.Version() + 1, "deploy a newer program"},
		"newer and silent":       {migrations.Version() + 1, true, 0, "deploy a newer program"},
		"newer, serves this one": {migrations.Version() + 1, true, migrations.Version(), ""},
		"newer, serves older":    {migrations.Version() + 1, true, 1, ""},
		"newer and undone":       {migrations.Version() + 1, false, migrations.Version() + 1, ""},
		"rolled forward":         {migrations.Version(), true, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := testenv.Database(t).Pool(t, "")
			if c.last != 0 {
				_, err := owner.Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, $2)`, c.last, c.applied)
				if err != nil {
					t.Fatal(err)
				}
			}
			if c.oldest != 0 {
				exec(t, owner, `INSERT INTO schema_files (version, name, sha256, oldest_program) VALUES ($1, '', '', $2)
					ON CONFLICT (version) DO UPDATE SET oldest_program = $2`, c.last, c.oldest)
			}
			err := migrations.Check(t.Context(), owner)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, migrations.ErrOutOfStep) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestCheckHeedsEveryFile: the head of the last file is easily copied from the one before.
func TestCheckHeedsEveryFile(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	next := migrations.Version() + 1
	exec(t, owner, `INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1::bigint, true), ($1::bigint + 1, true)`, next)
	exec(t, owner, `INSERT INTO schema_files (version, name, sha256, oldest_program)
		VALUES ($1::bigint, '', '', $1::bigint), ($1::bigint + 1, '', '', 8)`, next)

	err := migrations.Check(t.Context(), owner)
	want := fmt.Sprintf("version %d and serves programs from %d on", next+1, next)
	if !errors.Is(err, migrations.ErrOutOfStep) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestRolesMayNotChangeHistory(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	for role, statements := range map[string][]string{
		"api_write": {
			`UPDATE payments SET amount_minor = 1`, `UPDATE payments SET source_account = id`, `DELETE FROM payments`,
			`UPDATE refunds SET amount_minor = 1`, `DELETE FROM refunds`,
			`UPDATE payment_commands SET version = 1`, `DELETE FROM payment_commands`, `SELECT FROM payment_commands`,
			`UPDATE schema_files SET oldest_program = 1`,
			`UPDATE ledger_entries SET amount_minor = 1`, `DELETE FROM ledger_entries`,
			`UPDATE idempotency_keys SET body = ''`, `DELETE FROM idempotency_keys`,
			`UPDATE outbox_events SET payload = ''`, `DELETE FROM outbox_events`,
			`UPDATE accounts SET kind = 'system'`, `DELETE FROM accounts`,
			`UPDATE outbox_cursors SET last_id = 0`, `UPDATE credentials SET revoked_at = NULL`,
		},
		"api_read": {
			`UPDATE accounts SET balance_minor = 0`, `DELETE FROM payments`, `DELETE FROM idempotency_keys`,
			`SELECT FROM credentials`, `SELECT FROM outbox_events`, `SELECT FROM payment_commands`, `UPDATE refunds SET amount_minor = 1`,
		},
		"relay": {
			`UPDATE outbox_events SET payload = ''`, `DELETE FROM outbox_events`, `DELETE FROM outbox_cursors`,
			`SELECT FROM payments`, `SELECT FROM idempotency_keys`,
		},
		"consumer": {
			`DELETE FROM inbox_events`, `UPDATE inbox_events SET consumer = ''`, `SELECT FROM payments`, `SELECT FROM outbox_events`,
		},
	} {
		pool := db.Pool(t, role)
		for _, sql := range statements {
			if _, err := pool.Exec(t.Context(), sql); code(err) != "42501" {
				t.Errorf("%s may %s: %v", role, sql, err)
			}
		}
	}
}

func TestLedgerEntriesAreInsertOnly(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	exec(t, owner, `INSERT INTO ledger_entries (account_id, tenant_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
		SELECT '00000000-0000-7000-8000-000000000000', gen_random_uuid(), n, gen_random_uuid(), gen_random_uuid(), 'USD', 1, n, now() FROM generate_series(1, 3) n`)
	for _, sql := range []string{`UPDATE ledger_entries SET amount_minor = 1`, `DELETE FROM ledger_entries`, `TRUNCATE ledger_entries`} {
		if _, err := owner.Exec(t.Context(), sql); code(err) != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}

	// What the opening carries may go, and nothing behind it.
	exec(t, owner, `INSERT INTO ledger_openings VALUES ('00000000-0000-7000-8000-000000000000', gen_random_uuid(), 2, 2)`)
	if _, err := owner.Exec(t.Context(), `DELETE FROM ledger_entries WHERE entry_no >= 2`); code(err) != "42501" {
		t.Errorf("the newest one: %v", err)
	}
	exec(t, owner, `DELETE FROM ledger_entries WHERE entry_no <= 2`)
}

func TestACustomerIsNeverBelowZero(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	for kind, want := range map[string]string{"customer": "23514", "system": ""} {
		_, err := owner.Exec(t.Context(), `INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor)
			VALUES (gen_random_uuid(), gen_random_uuid(), $1, 'USD', -1)`, kind)
		if code(err) != want {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

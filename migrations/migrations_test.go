package migrations_test

import (
	"errors"
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
		want    string
	}{
		"as it should be":  {},
		"older":            {migrations.Version(), false, "run `migrate up`"}, // the last file was rolled back
		"newer":            {migrations.Version() + 1, true, "deploy a newer program"},
		"newer and undone": {migrations.Version() + 1, false, ""},
		"rolled forward":   {migrations.Version(), true, ""},
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
			err := migrations.Check(t.Context(), owner)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, migrations.ErrOutOfStep) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestRolesMayNotChangeHistory(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	for role, statements := range map[string][]string{
		"api_write": {
			`UPDATE payments SET status = 'declined'`, `DELETE FROM payments`,
			`UPDATE ledger_entries SET amount_minor = 1`, `DELETE FROM ledger_entries`,
			`UPDATE idempotency_keys SET body = ''`, `DELETE FROM idempotency_keys`,
			`UPDATE outbox_events SET payload = ''`, `DELETE FROM outbox_events`,
			`UPDATE accounts SET kind = 'system'`, `DELETE FROM accounts`,
			`UPDATE outbox_cursors SET last_id = 0`, `UPDATE credentials SET revoked_at = NULL`,
		},
		"api_read": {
			`UPDATE accounts SET balance_minor = 0`, `DELETE FROM payments`, `DELETE FROM idempotency_keys`,
			`SELECT FROM credentials`, `SELECT FROM outbox_events`,
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
	for _, sql := range []string{`UPDATE ledger_entries SET amount_minor = 1`, `DELETE FROM ledger_entries`, `TRUNCATE ledger_entries`} {
		if _, err := owner.Exec(t.Context(), sql); code(err) != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
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

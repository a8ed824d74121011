package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestReaderIsBoundByRowLevelSecurity(t *testing.T) {
	t.Parallel()
	const all = "accounts, idempotency_keys, ledger_entries, payment_commands, payments, refunds, webhook_deliveries, webhook_endpoints"
	for name, c := range map[string]struct {
		role string // empty: the owner
		more string // as the owner, before
		want string // tables; empty: it is bound
	}{
		"api_read":               {"api_read", "", ""},
		"api_write":              {"api_write", "", all},
		"superuser":              {"", "", all},
		"switched off":           {"api_read", `ALTER TABLE payments DISABLE ROW LEVEL SECURITY`, "payments"},
		"owner of a table":       {"api_read", `ALTER TABLE ledger_entries OWNER TO api_read`, "ledger_entries"},
		"may write":              {"api_read", `GRANT DELETE ON accounts TO api_read`, "accounts"},
		"refunds switched off":   {"api_read", `ALTER TABLE refunds DISABLE ROW LEVEL SECURITY`, "refunds"},
		"every row to everybody": {"api_read", `CREATE POLICY lax ON accounts USING (true)`, "accounts"},
		"every row to the role":  {"api_read", `CREATE POLICY lax ON payments FOR SELECT TO api_read USING (amount_minor > 0)`, "payments"},
		"another role's policy":  {"api_read", `CREATE POLICY lax ON payments FOR SELECT TO consumer USING (true)`, ""},
		"a narrower policy":      {"api_read", `CREATE POLICY narrow ON payments AS RESTRICTIVE FOR SELECT TO api_read USING (amount_minor > 0)`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			if c.more != "" {
				if _, err := db.Pool(t, "").Exec(t.Context(), c.more); err != nil {
					t.Fatal(err)
				}
			}

			var log bytes.Buffer
			check := func(security string) error {
				cfg := config.API{RowSecurity: security}
				return checkReader(t.Context(), db.Pool(t, c.role), cfg, slog.New(slog.NewTextHandler(&log, nil)))
			}
			err := check("required")
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), " on "+c.want+":") || log.Len() > 0 {
				t.Errorf("%v, want %s; log: %s", err, c.want, &log)
			}
			if err := check("off"); err != nil || !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), c.want) {
				t.Errorf("off: %v, log: %s", err, &log)
			}
		})
	}
}

// A table that a migration adds for the reader must be checked, too. As the owner, every table that
// is checked is reported. Only row-level security keeps the reader from payment_commands if it is
// granted.
func TestEveryTableOfTheReaderIsChecked(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	var readable, role, checked string
	err := db.QueryRow(t.Context(), `
		SELECT string_agg(relname, ', ' ORDER BY relname) FROM pg_class
		WHERE relnamespace = 'public'::regnamespace
		  AND (has_any_column_privilege('api_read', oid, 'SELECT') OR relname = 'payment_commands')
		  AND relname NOT IN ('goose_db_version', 'idempotency_retention', 'schema_files')`).Scan(&readable)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(t.Context(), seesEveryTenant).Scan(&role, &checked); err != nil {
		t.Fatal(err)
	}
	if readable != checked {
		t.Errorf("api_read reads %s; tenantTables has %s", readable, checked)
	}
}

func TestWriterWithRewriteRightsIsReported(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	for role, want := range map[string]string{
		"api_write": "",
		"":          "accounts, idempotency_keys, ledger_entries, payment_commands, payments, refunds, webhook_deliveries, webhook_endpoints",
	} {
		var log bytes.Buffer
		if err := checkWriter(t.Context(), db.Pool(t, role), slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), want) || want == "" && log.Len() > 0 {
			t.Errorf("%q: %s", role, &log)
		}
	}
}

// The check is part of the start: a login for both is refused, and the pools are closed.
func TestStartRefusesReaderOfAllTenants(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	for read, ok := range map[string]bool{"api_read": true, "api_write": false} {
		cfg := config.API{
			DatabaseURL: db.URLAs("api_write"), DatabaseReadURL: db.URLAs(read),
			DatabasePool: 1, RowSecurity: "required",
		}
		pools, err := openPools(t.Context(), cfg, slog.New(slog.DiscardHandler))
		pools.close()
		if (err == nil) != ok {
			t.Errorf("reading as %s: %v", read, err)
		}
	}
}

package migrations_test

import (
	"testing"

	"github.com/oncepay/oncepay/internal/testenv"
)

// Tables whose rows belong to no tenant, or name theirs otherwise.
var withoutTenant = map[string]string{
	"tenants":               "its id is the tenant",
	"credentials":           "its client names the tenant",
	"statements":            "another team's table: the account names the tenant, as in the events it is made of",
	"archived_days":         "a day of all tenants",
	"outbox_cursors":        "one row for each relay",
	"idempotency_retention": "one row",
	"inbox_events":          "what a consumer has read; a move leaves it behind, with the topic it was read from",
	"inbox_dead_letters":    "records as they were read, whose header may name a tenant",
	"inbox_sequences":       "one row for each aggregate of a topic, forgotten after days",
	"inbox_horizon":         "one row",
	"inbox_consumers":       "one row for each consumer",
	"goose_db_version":      "the schema's",
	"schema_files":          "the schema's",
}

// A row without a tenant can be moved with none, and shown by no policy.
func TestEveryTableHasTheTenantOrAReason(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	without := lines(t, owner, `
SELECT c.relname::text FROM pg_class c
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace
  AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id')`)
	if len(without) != len(withoutTenant) {
		t.Errorf("%d tables without a tenant, %d reasons", len(without), len(withoutTenant))
	}
	for _, table := range without {
		if withoutTenant[table] == "" {
			t.Errorf("%s has no tenant_id and no reason", table)
		}
	}
}

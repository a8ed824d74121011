package main

import (
	"testing"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/tools/rig"
)

const aBank = `
WITH t AS (INSERT INTO tenants (id, name) VALUES (gen_random_uuid(), 'bench') RETURNING id),
  c AS (INSERT INTO clients (id, tenant_id, name) SELECT gen_random_uuid(), id, 'load' FROM t)
INSERT INTO accounts (id, tenant_id, kind, currency, created_at)
SELECT gen_random_uuid(), id, 'system', 'USD', now() - interval '60 days' FROM t`

// A run proves its figures by the books, so what it begins with has to balance.
func TestStoredPastBalances(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t).URL
	if err := rig.Execute(t.Context(), url, aBank); err != nil {
		t.Fatal(err)
	}
	indexes := func() (n int) {
		t.Helper()
		n, err := rig.Query[int](t.Context(), url, `SELECT count(*) FROM pg_indexes WHERE tablename IN ('payments', 'ledger_entries')`)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := indexes()

	if err := rig.Execute(t.Context(), url, past(210, 7)...); err != nil {
		t.Fatal(err)
	}
	if err := checkBooks(t.Context(), url, make([]int, 4), []int{210, 52, 0, 420}, nil); err != nil {
		t.Error(err)
	}
	if after := indexes(); after != before {
		t.Errorf("%d indexes, there were %d", after, before)
	}
}

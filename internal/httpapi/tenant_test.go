package httpapi_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/httpapi"
)

// ownRows counts what a tenant has in each table that api_read may read.
var ownRows = map[string]string{
	"accounts":         `SELECT count(*) FROM accounts WHERE tenant_id = $1`,
	"payments":         `SELECT count(*) FROM payments WHERE tenant_id = $1`,
	"ledger_entries":   `SELECT count(*) FROM ledger_entries e JOIN accounts a ON a.id = e.account_id WHERE a.tenant_id = $1`,
	"refunds":          `SELECT count(*) FROM refunds WHERE tenant_id = $1`,
	"idempotency_keys": `SELECT count(*) FROM idempotency_keys WHERE tenant_id = $1`,
}

// Row-level security is the second net: no query here names a tenant.
func TestReaderSeesOwnTenantOnly(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	one, two := a.caller, a.newTenant(t, credentials.ScopeFund)
	for _, c := range []caller{one, two, two} {
		p := c.pay(t, c.funded(t, 100), c.account(t), 1)
		c.post(t, "/api/v1/payments/"+p.ID.String()+"/refunds", `{}`).wantStatus(t, http.StatusCreated)
	}
	readable := a.number(t, `SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p') AND relname NOT IN ('goose_db_version', 'schema_files', 'idempotency_retention')
		AND has_table_privilege('api_read', oid, 'SELECT') AND relnamespace = 'public'::regnamespace`)
	if readable != len(ownRows) {
		t.Errorf("api_read may read %d tables, this test knows %d", readable, len(ownRows))
	}

	for table, own := range ownRows {
		ofOne, ofTwo := a.number(t, own, one.tenant), a.number(t, own, two.tenant)
		if ofOne == 0 || ofOne >= ofTwo {
			t.Errorf("%s: the tenants have %d and %d rows", table, ofOne, ofTwo)
		}
		for tenant, want := range map[string]int{"": 0, one.tenant.String(): ofOne, two.tenant.String(): ofTwo} {
			err := pgx.BeginFunc(t.Context(), a.read, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `SELECT set_config('oncepay.tenant', $1, true)`, tenant); err != nil {
					return err
				}
				var got int
				err := tx.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&got)
				if got != want {
					t.Errorf("%s: tenant %q sees %d rows, want %d", table, tenant, got, want)
				}
				return err
			})
			if err != nil {
				t.Errorf("%s: %v", table, err)
			}
		}
		var unset int
		if err := a.read.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&unset); err != nil || unset != 0 {
			t.Errorf("%s: without a tenant %d rows are seen: %v", table, unset, err)
		}
	}
}

// And the statements are the first one: here the reader is a role that sees every tenant's rows.
func TestStatementsNameTheTenant(t *testing.T) {
	t.Parallel()
	a := start(t, func(o *httpapi.Options) {
		config := o.Read.Config()
		config.ConnConfig.User, config.ConnConfig.Password = "api_write", "api_write"
		pool, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		o.Read = pool
	})
	c, stranger := a.caller, a.newTenant(t)
	from := c.funded(t, 100)
	paid := c.post(t, "/api/v1/payments", order(from, c.account(t), 1), "Idempotency-Key", "k")

	refunds := paid.header.Get("Location") + "/refunds"
	refunded := c.post(t, refunds, `{}`)
	// Of one that was never refunded nothing but the payment's row is read.
	plain := c.post(t, "/api/v1/payments", order(from, c.account(t), 1))

	for _, path := range []string{plain.header.Get("Location"), paid.header.Get("Location"), refunds, refunded.header.Get("Location"), "/api/v1/accounts/" + from, "/api/v1/accounts/" + from + "/entries"} {
		c.get(t, path).wantStatus(t, http.StatusOK)
		stranger.get(t, path).is(t, http.StatusNotFound, "not-found")
	}
	for _, path := range []string{"/api/v1/payments", "/api/v1/payments?account=" + from, "/api/v1/payments?status=completed"} {
		if got := read[page[any]](t, c.get(t, path), http.StatusOK); len(got.Items) == 0 {
			t.Errorf("%s: the tenant's own list is empty", path)
		}
		if got := read[page[any]](t, stranger.get(t, path), http.StatusOK); len(got.Items) > 0 {
			t.Errorf("%s: a stranger sees %v", path, got.Items)
		}
	}
	for status, who := range map[string]caller{"completed": c, "unknown": stranger} {
		if got := read[map[string]any](t, who.get(t, "/api/v1/idempotency-keys/k"), http.StatusOK); got["status"] != status {
			t.Errorf("the key is %v, want %s", got["status"], status)
		}
	}
}

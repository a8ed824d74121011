package migrations_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
)

// No query here names a tenant.
func TestWebhooksAreTheTenantsOwn(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	api, worker, read := db.Pool(t, "api_write"), db.Pool(t, "worker"), db.Pool(t, "api_read")
	mine, theirs := uuid.New(), uuid.New()
	for _, tenant := range []uuid.UUID{mine, theirs, theirs} {
		exec(t, api, `INSERT INTO webhook_endpoints (id, tenant_id, url, secret, created_at, state_since)
			VALUES (gen_random_uuid(), $1, 'https://example.com/', 'whsec_', now(), now())`, tenant)
		exec(t, worker, `INSERT INTO webhook_deliveries (endpoint_id, tenant_id, event_id, event_type, subject, body)
			VALUES (gen_random_uuid(), $1, gen_random_uuid(), 'payment.completed', 'p', '{}')`, tenant)
	}
	for tenant, want := range map[string]int{"": 0, mine.String(): 1, theirs.String(): 2} {
		err := pgx.BeginFunc(t.Context(), read, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SELECT set_config('oncepay.tenant', $1, true)`, tenant); err != nil {
				return err
			}
			var endpoints, deliveries int
			err := tx.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM webhook_endpoints), (SELECT count(*) FROM webhook_deliveries)`).
				Scan(&endpoints, &deliveries)
			if endpoints != want || deliveries != want {
				t.Errorf("tenant %q sees %d endpoints and %d deliveries, want %d", tenant, endpoints, deliveries, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}

	for role, statements := range map[string][]string{
		"api_read":  {`SELECT secret FROM webhook_endpoints`, `SELECT previous_secret FROM webhook_endpoints`, `SELECT body FROM webhook_deliveries`, `DELETE FROM webhook_endpoints`},
		"api_write": {`DELETE FROM webhook_endpoints`, `DELETE FROM webhook_deliveries`, `UPDATE webhook_endpoints SET url = ''`, `UPDATE webhook_deliveries SET body = ''`},
		"worker":    {`UPDATE webhook_endpoints SET secret = ''`, `UPDATE webhook_endpoints SET url = ''`, `UPDATE webhook_deliveries SET body = ''`},
		"consumer":  {`SELECT FROM webhook_endpoints`}, "relay": {`SELECT FROM webhook_deliveries`},
	} {
		pool := db.Pool(t, role)
		for _, sql := range statements {
			if _, err := pool.Exec(t.Context(), sql); code(err) != "42501" {
				t.Errorf("%s may %s: %v", role, sql, err)
			}
		}
	}
}

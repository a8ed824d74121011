package migrations_test

import (
	"database/sql"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

// The statements of version 9, which knows no cards. Its programs go on while a deploy is under way.
const (
	insertPayment9 = `
INSERT INTO payments (id, tenant_id, status, decline_code, version, amount_minor, currency,
    source_account, destination_account, description, metadata, client_reference, processed_at, authorization_expires_at,
    client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
VALUES ($1, $2, $3, CASE $3 WHEN 'declined' THEN 'insufficient-funds' ELSE '' END, 1, 5, 'USD', $2, $1, '', '{}', '', now(),
    CASE $3 WHEN 'authorized' THEN now() END, $2, 'k', '\x00', 1, 'POST', '/x', 'r')`

	updatePayment9 = `
UPDATE payments p SET status = $2, version = version + 1, released_minor = $3, refunded_minor = $4,
    authorization_ended_at = CASE WHEN authorization_expires_at IS NOT NULL THEN now() END
WHERE p.id = $1`

	insertRefund9 = `
INSERT INTO refunds (id, tenant_id, payment_id, payment_version, status, decline_code, amount_minor,
    currency, source_account, destination_account, reason, metadata, processed_at)
VALUES ($1, $2, $1, 2, $3, CASE $3 WHEN 'declined' THEN 'insufficient-funds' ELSE '' END, 2, 'USD', $2, $2, '', '{}', now())`
)

// live9 leaves one row of every kind that version 9 knows.
func live9(t *testing.T, api, worker *pgxpool.Pool) {
	t.Helper()
	tenant := uuid.New()
	exec(t, api, `INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, held_minor) SELECT gen_random_uuid(), $1, kind, 'USD', 9, 3
		FROM unnest(ARRAY['customer', 'system']) kind`, tenant)
	exec(t, api, insertEntry7, uuid.New())
	payment := func(status string) uuid.UUID {
		id := uuid.New()
		exec(t, api, insertPayment9, id, tenant, status)
		return id
	}
	payment("completed")
	payment("declined")
	payment("authorized")
	exec(t, api, updatePayment9, payment("authorized"), "completed", 1, 0)
	exec(t, api, updatePayment9, payment("completed"), "completed", 0, 2)
	exec(t, api, updatePayment9, payment("authorized"), "completed", 2, 3)
	exec(t, api, updatePayment9, payment("authorized"), "canceled", 0, 0)
	exec(t, worker, updatePayment9, payment("authorized"), "expired", 0, 0)
	exec(t, api, insertRefund9, uuid.New(), tenant, "completed")
	exec(t, api, insertRefund9, uuid.New(), tenant, "declined")
}

// What the rows of version 9 say, and which files they are in.
const (
	rows9 = `
SELECT (to_jsonb(p) - 'payment_method' - 'refunding_minor' - 'settled_at')::text FROM payments p
UNION ALL SELECT (to_jsonb(r) - 'settled_at')::text FROM refunds r
UNION ALL SELECT to_jsonb(a)::text FROM accounts a
UNION ALL SELECT to_jsonb(e)::text FROM ledger_entries e ORDER BY 1`

	files = `
SELECT relname || ' ' || relfilenode FROM pg_class WHERE relname IN ('payments', 'refunds', 'accounts', 'ledger_entries') ORDER BY 1`
)

func TestCardsComeToFullDatabase(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner, api, worker := db.Pool(t, ""), db.Pool(t, "api_write"), db.Pool(t, "worker")
	down(t, db.URL, 9)
	live9(t, api, worker)
	rows, before := lines(t, owner, rows9), lines(t, owner, files)

	for range 2 {
		if _, err := migrations.Up(t.Context(), db.URL); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, lines(t, owner, files)); diff != "" {
			t.Errorf("a table was rewritten: %s", diff)
		}
		if diff := cmp.Diff(rows, lines(t, owner, rows9)); diff != "" {
			t.Error(diff)
		}
		const cards = `SELECT id::text FROM payments WHERE payment_method <> 'account' OR refunding_minor <> 0 OR settled_at IS NOT NULL
			UNION ALL SELECT id::text FROM refunds WHERE settled_at IS NOT NULL UNION ALL SELECT id::text FROM psp_operations
			UNION ALL SELECT conname FROM pg_constraint WHERE NOT convalidated UNION ALL SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid`
		if wrong := lines(t, owner, cards); len(wrong) > 0 {
			t.Errorf("by card, or not valid: %v", wrong)
		}
		down(t, db.URL, 9)
		if diff := cmp.Diff(rows, lines(t, owner, rows9)); diff != "" {
			t.Error(diff)
		}
	}

	// On the new schema, it works as before.
	if _, err := migrations.Up(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	live9(t, api, worker)
	if n := len(lines(t, owner, rows9)); n != 2*len(rows) {
		t.Errorf("%d rows, want %d", n, 2*len(rows))
	}
}

// Rows that break each constraint are found by 00011, so 00010 read none. 00011 can be run again.
func TestCardsReadNoTableUnderLock(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	down(t, db.URL, 9)
	live9(t, db.Pool(t, "api_write"), db.Pool(t, "worker"))
	exec(t, owner, `
DO $$ DECLARE c record; BEGIN
    FOR c IN SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE contype = 'c' AND conrelid::regclass::text IN ('payments', 'refunds', 'accounts') LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %2$I CHECK (true)', c.t, c.conname);
    END LOOP;
END $$`)
	exec(t, owner, `UPDATE payments SET status = 'processing', decline_code = 'x', refunded_minor = -1, authorization_ended_at = now()`)
	exec(t, owner, `UPDATE refunds SET status = 'bogus', decline_code = 'x'`)
	exec(t, owner, `UPDATE accounts SET kind = 'bogus', balance_minor = -1`)

	if err := upTo(t, db.URL, 10); err != nil {
		t.Fatalf("it looked at rows: %v", err)
	}
	if err := upTo(t, db.URL, 11); code(err) != "23514" {
		t.Errorf("it did not look at rows: %v", err)
	}
	exec(t, owner, `DELETE FROM payments`)
	exec(t, owner, `DELETE FROM refunds`)
	exec(t, owner, `DELETE FROM accounts`)
	if err := upTo(t, db.URL, 11); err != nil {
		t.Error(err)
	}
}

func upTo(t *testing.T, url string, to int64) error {
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
	_, err = p.UpTo(t.Context(), to)
	return err
}

// Version 9 would refund to an account what came by card.
func TestDownLosesNoCard(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	exec(t, db.Pool(t, "api_write"), `INSERT INTO accounts (id, tenant_id, kind, currency) VALUES (gen_random_uuid(), gen_random_uuid(), 'clearing', 'USD')`)
	if err := tryDown(t, db.URL, 9); code(err) != "55000" {
		t.Errorf("it went down: %v", err)
	}
}

// Version 9 knows no cards: its refund would only be in our books.
func TestOldProgramRefundsNoCard(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner, api := db.Pool(t, ""), db.Pool(t, "api_write")
	payment := uuid.New()
	exec(t, api, insertPayment9, payment, uuid.New(), "completed")
	exec(t, owner, `UPDATE payments SET payment_method = 'card', settled_at = now()`)
	refund := func(refunded int64) string {
		_, err := api.Exec(t.Context(), updatePayment9, payment, "completed", 0, refunded)
		return code(err)
	}
	for _, refunding := range []int64{0, 1} {
		exec(t, api, `UPDATE payments SET refunding_minor = $1`, refunding)
		if c := refund(2); c != "23514" {
			t.Errorf("2 were refunded, %d of them by the PSP: %q", refunding, c)
		}
	}
	exec(t, api, `UPDATE payments SET refunding_minor = 2`)
	exec(t, api, `UPDATE payments SET refunding_minor = 0, refunded_minor = 2`)
	if c := refund(2); c != "" {
		t.Errorf("a command that refunds nothing: %s", c)
	}
}

// The table keeps what decide promises, should decide be wrong.
func TestCardsRefuseImpossibleStates(t *testing.T) {
	t.Parallel()
	owner := testenv.Database(t).Pool(t, "")
	for state, possible := range map[string]bool{
		`'card', 'processing', '', 0, 0, NULL, NULL`:    true,
		`'card', 'completed', '', 2, 3, now(), NULL`:    true,
		`'card', 'declined', 'x', 0, 0, now(), NULL`:    true,
		`'card', 'failed', 'x', 0, 0, now(), NULL`:      true,
		`'card', 'completed', '', 0, 0, NULL, NULL`:     false, // settled, but when?
		`'card', 'processing', '', 0, 0, now(), NULL`:   false,
		`'card', 'processing', '', 0, 1, NULL, NULL`:    false, // is refunded before it was paid
		`'card', 'completed', '', 3, 3, now(), NULL`:    false, // more than was paid
		`'card', 'completed', '', 0, -1, now(), NULL`:   false,
		`'card', 'failed', '', 0, 0, now(), NULL`:       false,
		`'card', 'authorized', '', 0, 0, now(), now()`:  false,
		`'card', 'canceled', '', 0, 0, now(), NULL`:     false,
		`'account', 'processing', '', 0, 0, NULL, NULL`: false,
		`'account', 'completed', '', 0, 1, NULL, NULL`:  false,
		`'account', 'completed', '', 0, 0, now(), NULL`: false,
		`'account', 'failed', 'x', 0, 0, NULL, NULL`:    false,
		`'cash', 'completed', '', 0, 0, NULL, NULL`:     false,
	} {
		_, err := owner.Exec(t.Context(), `INSERT INTO payments (payment_method, status, decline_code, refunded_minor, refunding_minor, settled_at, authorization_expires_at,
			id, tenant_id, version, amount_minor, currency, source_account, destination_account, processed_at,
			client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
			SELECT column1, column2, column3, column4, column5, column6::timestamptz, column7::timestamptz, gen_random_uuid(), gen_random_uuid(), 1, 5, 'USD',
			gen_random_uuid(), gen_random_uuid(), now(), gen_random_uuid(), 'k', '', 1, 'POST', '/x', 'r' FROM (VALUES (`+state+`)) s`)
		if want := map[bool]string{true: "", false: "23514"}[possible]; code(err) != want || possible && err != nil {
			t.Errorf("%s: %v", state, err)
		}
	}

	for state, possible := range map[string]bool{
		`'charge', NULL, 'pending', 0, NULL, NULL, ''`:      true,
		`'refund', now(), 'unknown', 1, now(), NULL, ''`:    true,
		`'charge', NULL, 'succeeded', 1, now(), now(), ''`:  true,
		`'charge', NULL, 'declined', 1, now(), now(), 'x'`:  true,
		`'charge', now(), 'pending', 0, NULL, NULL, ''`:     false, // of a refund
		`'refund', NULL, 'pending', 0, NULL, NULL, ''`:      false,
		`'charge', NULL, 'unknown', 0, NULL, NULL, ''`:      false, // was never sent
		`'charge', NULL, 'unknown', 1, NULL, NULL, ''`:      false,
		`'charge', NULL, 'unknown', 1, now(), now(), ''`:    false,
		`'charge', NULL, 'succeeded', 1, now(), NULL, ''`:   false,
		`'charge', NULL, 'succeeded', 1, now(), now(), 'x'`: false,
		`'charge', NULL, 'failed', 1, now(), now(), ''`:     false,
		`'payout', NULL, 'pending', 0, NULL, NULL, ''`:      false,
		`'charge', NULL, 'sent', 1, now(), NULL, ''`:        false,
	} {
		_, err := owner.Exec(t.Context(), `INSERT INTO psp_operations (kind, refund_id, state, tries, first_tried_at, ended_at, code, id, tenant_id, payment_id, amount_minor, currency, created_at)
			SELECT column1, CASE WHEN column2::timestamptz IS NOT NULL THEN gen_random_uuid() END, column3, column4, column5::timestamptz, column6::timestamptz, column7,
			gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 5, 'USD', now() FROM (VALUES (`+state+`)) s`)
		if want := map[bool]string{true: "", false: "23514"}[possible]; code(err) != want || possible && err != nil {
			t.Errorf("operation %s: %v", state, err)
		}
	}
}

func TestRolesMayNotChangeOperations(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	for role, statements := range map[string][]string{
		"api_write": {`UPDATE psp_operations SET amount_minor = 1`, `UPDATE psp_operations SET card_token = ''`, `DELETE FROM psp_operations`, `UPDATE payments SET payment_method = 'account'`},
		"api_read":  {`SELECT FROM psp_operations`, `UPDATE refunds SET status = ''`},
		"worker": {
			`INSERT INTO psp_operations DEFAULT VALUES`, `UPDATE psp_operations SET amount_minor = 1`, `UPDATE psp_operations SET payment_id = id`, `DELETE FROM psp_operations`,
			`INSERT INTO payments DEFAULT VALUES`, `INSERT INTO refunds DEFAULT VALUES`, `UPDATE refunds SET amount_minor = 1`, `UPDATE payments SET amount_minor = 1`,
			`UPDATE ledger_entries SET amount_minor = 1`, `SELECT FROM idempotency_keys`, `UPDATE accounts SET kind = 'system'`,
		},
		"relay":    {`SELECT FROM psp_operations`},
		"consumer": {`SELECT FROM psp_operations`},
	} {
		pool := db.Pool(t, role)
		for _, statement := range statements {
			if _, err := pool.Exec(t.Context(), statement); code(err) != "42501" {
				t.Errorf("%s may %s: %v", role, statement, err)
			}
		}
	}
}

// A tenant that left would be served in two clusters.
func TestDownForgetsNoTenantThatLeft(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	exec(t, owner, `INSERT INTO tenants (id, name) VALUES (gen_random_uuid(), 'left')`)
	exec(t, owner, `INSERT INTO tenant_moves (tenant_id, state, target) SELECT id, 'left', '' FROM tenants`)
	if err := tryDown(t, db.URL, 13); code(err) != "55000" {
		t.Errorf("%v", err)
	}
}

package plans

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// Days that are over, and not dropped yet.
const makeOldDays = `
DO $$ DECLARE d date; BEGIN
    FOR i IN 1..6 LOOP
        d := (now() AT TIME ZONE 'utc')::date - i;
        EXECUTE format('CREATE TABLE %I PARTITION OF idempotency_keys FOR VALUES FROM (%L) TO (%L)', 'idempotency_keys_' || to_char(d, 'YYYYMMDD'), d, d + 1);
        EXECUTE format('CREATE TABLE %I PARTITION OF outbox_events FOR VALUES FROM (%L) TO (%L)', 'outbox_events_' || to_char(d, 'YYYYMMDD'), d, d + 1);
    END LOOP;
END $$`

// Whether a table was analysed is for the test to say.
const stopAutovacuum = `
DO $$ DECLARE c regclass; BEGIN
    FOR c IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', c);
    END LOOP;
END $$`

// The accounts, keys, payments and entries of one large tenant. Rows are short, and inserted in the order of an index where that costs
// nothing: it halves the time, and plans go by numbers, not by texts. The first account is hot: it is the source of every tenth
// payment. Those have entries; the others were declined, which have none.
const (
	fillAccounts = `
INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, entry_count)
SELECT md5('account ' || n)::uuid, $1, 'customer', 'USD', 1000000, $2 FROM generate_series(1, $3) n`

	fillKeys = `
INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, day, fingerprint_version, fingerprint, request_id, status, content_type, location, body)
SELECT $1, $2, lpad(n::text, 12, '0'), substr(sha256(uuid_send($1) || uuid_send($2) || lpad(n::text, 12, '0')::bytea), 1, 16), (now() AT TIME ZONE 'utc')::date - (n * 7 / ($3 + 1))::int, 1,
  '\x0000000000000000000000000000000000000000000000000000000000000000', 'r', 201, 'application/json', '', '{}'
FROM generate_series(1, $3::bigint) n`

	fillPayments = `
INSERT INTO payments (id, tenant_id, status, decline_code, version, amount_minor, currency, source_account, destination_account,
  processed_at, client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - $3 + n), 12, '0') || '7' || right(md5(n::text), 3) || '8000000000000000')::uuid,
  $1, CASE WHEN n % 10 = 0 THEN 'completed' ELSE 'declined' END, CASE WHEN n % 10 = 0 THEN '' ELSE 'insufficient-funds' END, 1, 100, 'USD',
  md5('account ' || CASE WHEN n % 10 = 0 THEN 1 ELSE 2 + n % ($4 - 1) END)::uuid, md5('account ' || 2 + (n + 1) % ($4 - 1))::uuid,
  now(), $2, n, '', 1, 'POST', '/x', 'r'
FROM generate_series(1, $3::bigint) n`

	fillEntries = `
INSERT INTO ledger_entries (tenant_id, account_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
SELECT $3::uuid, md5('account 1')::uuid, n, md5(n::text)::uuid, md5((-n)::text)::uuid, 'USD', -100, 0, now() FROM generate_series(1, $1 / 10) n
UNION ALL
SELECT $3, md5('account ' || 2 + n % ($2 - 1))::uuid, 1 + n / ($2 - 1), md5('x' || n)::uuid, md5((-n)::text)::uuid, 'USD', 100, 0, now()
FROM generate_series(1, $1 / 10) n`

	// They have ended, and their first states are dead.
	fillOperations = `
INSERT INTO psp_operations (id, tenant_id, payment_id, kind, amount_minor, currency, card_token, created_at, next_try_at)
SELECT md5('operation ' || n)::uuid, $1, md5('paid ' || n)::uuid, 'charge', 100, 'USD', 'tok', now(), now() - interval '1 day' + interval '1 ms' * n
FROM generate_series(1, $2::bigint) n`

	endOperations = `
UPDATE psp_operations SET state = 'succeeded', tries = 1, token = 1, first_tried_at = now(), next_try_at = now(), ended_at = now(), reference = 'ch'`
)

// A hundred events in each transaction, as group commit writes them: the relay finds its way by transactions. DO takes no arguments.
const fillOutbox = `
DO $$ BEGIN
    FOR n IN 1..%d LOOP
        INSERT INTO outbox_events (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, created_at)
        SELECT '00000000-0000-7000-8000-000000000000', 'payments', n, 1, 'payment.completed', '{}', now() - 6 * interval '1 day' * (1 - n::float / %[1]d)
        FROM generate_series(1, 100);
        COMMIT;
    END LOOP;
END $$`

// fill gives c rows keys, payments and events, a hundredth of that many accounts and a fifth of that many entries. It returns the hot account.
func (c caller) fill(t *testing.T, rows int64) (hot uuid.UUID) {
	t.Helper()
	start, accounts := time.Now(), rows/100
	g, ctx := errgroup.WithContext(t.Context())
	g.Go(func() error { return c.run(ctx, fillPayments, c.tenant, c.client, rows, accounts) })
	g.Go(func() error { return c.run(ctx, fmt.Sprintf(fillOutbox, rows/100)) })
	g.Go(func() error {
		if err := c.run(ctx, fillAccounts, c.tenant, rows, accounts); err != nil {
			return err
		}
		if err := c.run(ctx, fillKeys, c.tenant, c.client, rows); err != nil {
			return err
		}
		if err := c.run(ctx, fillOperations, c.tenant, rows); err != nil {
			return err
		}
		if err := c.run(ctx, endOperations); err != nil {
			return err
		}
		return c.run(ctx, fillEntries, rows, accounts, c.tenant)
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d keys, payments and events made in %.0f s", rows, time.Since(start).Seconds())
	row := c.db.Pool(t, "").QueryRow(t.Context(), `SELECT md5('account 1')::uuid`)
	if err := row.Scan(&hot); err != nil {
		t.Fatal(err)
	}
	return hot
}

// run runs a statement as the owner, on a connection of its own and for as long as it takes.
func (s *service) run(ctx context.Context, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, s.db.URL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off; SET timezone = 'UTC'`); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

package invariant_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/testenv"
)

// The tables as a million payments between 10,000 customers leave them: every hundredth payment brings money in, every fiftieth
// other one is declined. $1: tenant, $2: client.
var million = []string{
	`CREATE FUNCTION made_id(kind text, n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT (lpad(to_hex(1790000000000 + n / 10), 12, '0')
		|| '7' || substr(md5(kind || n), 1, 3) || '8' || substr(md5(kind || n), 4, 15))::uuid $$`,
	`INSERT INTO accounts (id, tenant_id, kind, currency) SELECT made_id('account', n), $1, CASE n WHEN 0 THEN 'system' ELSE 'customer' END, 'USD'
		FROM generate_series(0, 10000) n WHERE $2::uuid IS NOT NULL`,
	`INSERT INTO payments (id, tenant_id, status, decline_code, version, amount_minor, currency, source_account, destination_account, processed_at,
			client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
		SELECT made_id('payment', n), $1, CASE WHEN n % 100 = 50 THEN 'declined' ELSE 'completed' END, CASE WHEN n % 100 = 50 THEN 'insufficient-funds' ELSE '' END, 1,
			CASE n % 100 WHEN 0 THEN 1000000 ELSE 1 + n % 997 END, 'USD',
			made_id('account', CASE n % 100 WHEN 0 THEN 0 ELSE 1 + n % 10000 END), made_id('account', 1 + (CASE n % 100 WHEN 0 THEN n / 100 ELSE n * 7 + 1 END) % 10000),
			date_trunc('milliseconds', now()), $2, 'key-' || n || '-' || md5(n::text), sha256(n::text::bytea), 1, 'POST', '/v1/payments', md5(n::text)
		FROM generate_series(0, 999999) n`,
	`ALTER TABLE accounts DROP CONSTRAINT accounts_customer_not_negative`,
	`INSERT INTO ledger_entries (account_id, tenant_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
		SELECT account_id, tenant_id, row_number() OVER w, gen_random_uuid(), id, currency, amount, sum(amount) OVER w, processed_at
		FROM (SELECT *, source_account AS account_id, -amount_minor AS amount FROM payments UNION ALL SELECT *, destination_account, amount_minor FROM payments) e
		WHERE status = 'completed' AND $1::uuid <> $2::uuid WINDOW w AS (PARTITION BY account_id ORDER BY amount_minor = 1000000 DESC, id, amount)`,
	`UPDATE accounts a SET balance_minor = e.s, entry_count = e.n FROM (SELECT account_id, sum(amount_minor) s, count(*) n FROM ledger_entries GROUP BY 1) e
		WHERE e.account_id = a.id AND $1::uuid <> $2::uuid`,
	`INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, fingerprint, fingerprint_version, request_id, status, content_type, location, body)
		SELECT tenant_id, client_id, idempotency_key, substr(sha256(uuid_send(tenant_id) || uuid_send(client_id) || convert_to(idempotency_key, 'UTF8')), 1, 16), fingerprint, 1, request_id, CASE status WHEN 'completed' THEN 201 ELSE 402 END, 'application/json',
			'/v1/payments/' || id, convert_to(format('{"id":"%s","status":"%s","amount_minor":%s,"currency":"USD","source_account":"%s","destination_account":"%s",' ||
			'"description":"","metadata":{},"client_reference":"","processed_at":"%s"}', id, status, amount_minor, source_account, destination_account,
			to_char(processed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')), 'UTF8')
		FROM payments WHERE $1::uuid <> $2::uuid`,
	`INSERT INTO outbox_events (event_id, tenant_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers)
		SELECT made_id('event', row_number() OVER ()), p.tenant_id, 'payments', p.id, 1, 'payment.' || p.status, k.body,
			jsonb_build_object('traceparent', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', 'ce_tenantid', p.tenant_id)
		FROM payments p JOIN idempotency_keys k ON k.key = p.idempotency_key WHERE $1::uuid <> $2::uuid`,
	`INSERT INTO outbox_events (event_id, tenant_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers)
		SELECT made_id('opened', row_number() OVER ()), tenant_id, 'accounts', id, 1, 'account.opened', '{}', jsonb_build_object('ce_tenantid', tenant_id) FROM accounts WHERE $1::uuid <> $2::uuid`,
	`SELECT inbox_events_make_partitions(ARRAY(SELECT DISTINCT (created_at AT TIME ZONE 'UTC')::date FROM outbox_events)) WHERE $1::uuid <> $2::uuid`,
	`INSERT INTO inbox_events (consumer, event_id, event_day) SELECT 'statements', event_id, (created_at AT TIME ZONE 'UTC')::date FROM outbox_events WHERE $1::uuid <> $2::uuid`,
	`INSERT INTO statements SELECT account_id, (created_at AT TIME ZONE 'UTC')::date, 'USD', count(*),
			coalesce(sum(-amount_minor) FILTER (WHERE amount_minor < 0), 0), coalesce(sum(amount_minor) FILTER (WHERE amount_minor > 0), 0)
		FROM ledger_entries WHERE $1::uuid <> $2::uuid GROUP BY 1, 2`,
	`ANALYZE`,
}

// A million payments, two million entries, a million events, a million stored answers and a history of 1,250,000 attempts.
func BenchmarkCheckOfAMillionPayments(b *testing.B) {
	pool := testenv.Database(b).Pool(b, "")
	prefix, brokers := testenv.TopicPrefix(b), testenv.Brokers(b)
	tenant, client := uuid.New(), uuid.New()
	for _, sql := range million {
		var args []any
		if strings.Contains(sql, "$2") {
			args = []any{tenant, client}
		}
		if _, err := pool.Exec(b.Context(), sql, args...); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	publishAll(b, pool, brokers, prefix)
	history := writeHistory(b, pool)
	b.Log("made")

	stages := map[string]time.Duration{}
	for b.Loop() {
		stage, since := "", time.Now()
		next := func(doing string) {
			if doing, _, _ = strings.Cut(doing, ":"); doing != stage {
				stages[stage] += time.Since(since)
				stage, since = doing, time.Now()
			}
		}
		report, err := invariant.Check(b.Context(), invariant.Sources{
			DB: pool, Brokers: brokers, TopicPrefix: prefix, Consumer: statements.Consumer, History: []string{history}, Progress: next,
		})
		next("")
		if err != nil {
			b.Fatal(err)
		}
		if !report.OK() || report.Payments != 1_000_000 || report.Records != 1_010_001 {
			_ = report.WriteTable(os.Stderr)
			b.Fatalf("%+v", report)
		}
	}
	delete(stages, "")
	for stage, took := range stages {
		stage = strings.NewReplacer(" ", "_").Replace(strings.ReplaceAll(stage, history, ""))
		b.ReportMetric(took.Seconds()/float64(b.N), stage+"_s/op")
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/check")
}

// publishAll sends the whole outbox.
func publishAll(b *testing.B, pool *pgxpool.Pool, brokers []string, prefix string) {
	b.Helper()
	publisher, _, err := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"payments", "accounts"}, Source: "/oncepay"}.Open(b.Context(), "main", "")
	if err != nil {
		b.Fatal(err)
	}
	defer publisher.Close()
	rows, err := pool.Query(b.Context(), `
		SELECT id, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers, created_at FROM outbox_events ORDER BY id`)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	var batch []relay.Message
	publish := func() {
		if err := publisher.Publish(b.Context(), batch, relay.Progress{}); err != nil {
			b.Fatal(err)
		}
		batch = batch[:0]
	}
	for rows.Next() {
		m, err := pgx.RowToStructByPos[relay.Message](rows)
		if err != nil {
			b.Fatal(err)
		}
		if batch = append(batch, m); len(batch) == 5000 {
			publish()
		}
	}
	publish()
	if rows.Err() != nil {
		b.Fatal(rows.Err())
	}
}

// writeHistory writes every payment's attempt, and a repeat of every fourth.
func writeHistory(b *testing.B, pool *pgxpool.Pool) string {
	b.Helper()
	name := filepath.Join(b.TempDir(), "history.jsonl")
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buffer := bufio.NewWriter(f)
	lines := json.NewEncoder(buffer)
	rows, err := pool.Query(b.Context(), `
		SELECT p.client_id, p.idempotency_key, encode(p.fingerprint, 'hex'), 'pay', '00000000-0000-0000-0000-000000000000'::uuid, p.amount_minor, p.currency, p.source_account, p.destination_account,
			k.status::int, p.decline_code, encode(sha256(k.body), 'hex'), false, p.request_id
		FROM payments p JOIN idempotency_keys k ON k.key = p.idempotency_key`)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	for n := 0; rows.Next(); n++ {
		x, err := pgx.RowToStructByPos[invariant.Exchange](rows)
		if err != nil {
			b.Fatal(err)
		}
		if err := lines.Encode(x); err != nil {
			b.Fatal(err)
		}
		if x.Replayed = true; n%4 == 0 {
			if err := lines.Encode(x); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := buffer.Flush(); err != nil || rows.Err() != nil {
		b.Fatal(err, rows.Err())
	}
	return name
}

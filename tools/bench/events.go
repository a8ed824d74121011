package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	ourTable     = "outbox_events"
	aggregates   = 10_000 // that events go round
	payloadBytes = 400
	fillBatch    = 1000 // events of one transaction of a backlog
)

// A payload is JSON of 400 bytes, a quarter of it random, that begins with the event's number: see numberOf.
const payloadFunction = `
CREATE FUNCTION bench_payload(n bigint) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT convert_to(rpad('{"n":"' || lpad(n::text, 10, '0') || '","payment_id":"' || md5(n::text) ||
    '","source_account":"' || md5((n % 10000)::text) || '","destination_account":"' || md5((n % 9973)::text) ||
    '","amount":{"currency":"USD","value":"' || 100 + n % 9000 || '"},"status":"completed","description":"',
    398, 'Invoice 2026-001742, October. ') || '"}', 'UTF8')
$$`

// Ids and xids are drawn by the table.
const fillTable = `
INSERT INTO %s (aggregate_type, aggregate_id, event_type, payload)
SELECT 'payments', 'account-' || n %% $3, 'payment.completed', bench_payload(n) FROM generate_series($1::bigint, $2::bigint) n ORDER BY n`

// fill writes events with the numbers from up to before until, then leaves the table as autovacuum and a checkpoint would.
func fill(ctx context.Context, database, table string, from, until int) error {
	conn, err := connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil {
		return fmt.Errorf("fill %s: %w", table, err)
	}
	if from == 0 && table == tutorialTable {
		if _, err := conn.Exec(ctx, `TRUNCATE `+table); err != nil {
			return fmt.Errorf("empty %s: %w", table, err)
		}
	}
	for ; from < until; from += fillBatch {
		if _, err := conn.Exec(ctx, fmt.Sprintf(fillTable, table), from, min(from+fillBatch, until)-1, aggregates); err != nil {
			return fmt.Errorf("fill %s: %w", table, err)
		}
	}
	for _, sql := range []string{`VACUUM ANALYZE ` + table, `CHECKPOINT`} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fill %s: %w", table, err)
		}
	}
	return nil
}

const insertEvents = `
INSERT INTO %s (aggregate_type, aggregate_id, event_type, payload)
SELECT 'payments', key, 'payment.completed', bench_payload(n) FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY t(n, key, i) ORDER BY i`

// insert writes events in one transaction: that of conn, or one of their own.
func insert(ctx context.Context, conn *pgx.Conn, table string, numbers []int64, keys []string) error {
	if _, err := conn.Exec(ctx, fmt.Sprintf(insertEvents, table), numbers, keys); err != nil {
		return fmt.Errorf("insert events: %w", err)
	}
	return nil
}

// keyOf names the aggregate of an event as fillTable does.
func keyOf(number int) string { return fmt.Sprintf("account-%d", number%aggregates) }

// numberOf reads the number of an event from its payload; -1: there is none.
func numberOf(payload []byte) int {
	const before, digits = len(`{"n":"`), 10
	if len(payload) < before+digits {
		return -1
	}
	n := 0
	for _, c := range payload[before : before+digits] {
		if c < '0' || c > '9' {
			return -1
		}
		n = 10*n + int(c-'0')
	}
	return n
}

const rowsTouched = `SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_all_tables WHERE relname LIKE $1 || '%'`

// touched counts the rows of an outbox that were updated or deleted: each left a dead one. Vacuum does not make it forget. It is exact when the
// sessions that did it have ended.
func touched(ctx context.Context, conn *pgx.Conn, table string) (n int64, err error) {
	if err := conn.QueryRow(ctx, rowsTouched, table).Scan(&n); err != nil {
		return 0, fmt.Errorf("count dead rows: %w", err)
	}
	return n, nil
}

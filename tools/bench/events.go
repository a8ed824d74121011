package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/tools/rig"
)

const (
	ourTable     = "outbox_events"
	aggregates   = 10_000 // that events go round
	payloadBytes = 400
	fillBatch    = 1000 // events of one transaction of a backlog
)

// A payload is JSON of 400 bytes, a quarter of it random, that begins with the event's number: see
// numberOf.
const payloadFunction = `
CREATE FUNCTION bench_payload(n bigint) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
  SELECT convert_to(rpad('{"n":"' || lpad(n::text, 10, '0') || '","payment_id":"' || md5(n::text) ||
    '","source_account":"' || md5((n % 10000)::text) || '","destination_account":"' || md5((n % 9973)::text) ||
    '","amount":{"currency":"USD","value":"' || 100 + n % 9000 || '"},"status":"completed","description":"',
    398, 'Invoice 2026-001742, October. ') || '"}', 'UTF8')
$$`

// The table draws ids and xids.
const insertEvents = `
INSERT INTO %s (aggregate_type, aggregate_id, event_type, payload)
SELECT 'payments', coalesce($3, 'account-' || n %% $2::int), 'payment.completed', bench_payload(n)
FROM unnest($1::bigint[]) WITH ORDINALITY t(n, i) ORDER BY i`

// insert writes events in one transaction: that of conn, or one of their own. Without an aggregate
// it goes round all.
func insert(ctx context.Context, conn *pgx.Conn, table string, numbers []int64, aggregate *string) error {
	sql := fmt.Sprintf(insertEvents, table)
	if _, err := conn.Exec(ctx, sql, numbers, aggregates, aggregate); err != nil {
		return fmt.Errorf("insert events: %w", err)
	}

	return nil
}

// fill writes events with the numbers from up to before until, then leaves the table as autovacuum
// and a checkpoint would.
func fill(ctx context.Context, url, table string, from, until int) error {
	conn, err := rig.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	before := `SET synchronous_commit = off`
	if table == tutorialTable {
		before += `; TRUNCATE ` + table
	}
	if _, err := conn.Exec(ctx, before); err != nil {
		return fmt.Errorf("fill %s: %w", table, err)
	}

	for from < until {
		var numbers []int64
		for ; from < until && len(numbers) < fillBatch; from++ {
			numbers = append(numbers, int64(from))
		}
		if err := insert(ctx, conn, table, numbers, nil); err != nil {
			return err
		}
	}

	return rig.Execute(ctx, url, `VACUUM ANALYZE `+table, `CHECKPOINT`)
}

// numberOf reads the number of an event from its payload; -1: there is none.
func numberOf(payload []byte) int {
	const before, digits = len(`{"n":"`), 10
	if len(payload) < before+digits {
		return -1
	}

	n, err := strconv.ParseUint(string(payload[before:before+digits]), 10, 63)
	if err != nil {
		return -1
	}

	return int(n)
}

// deadRows counts the rows of an outbox that were updated or deleted, each of which left a dead
// one. Vacuum does not make it forget. It is exact when the sessions that did it have ended.
func deadRows(ctx context.Context, url, table string) (int64, error) {
	return rig.Query[int64](ctx, url, `
SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_all_tables WHERE relname LIKE $1 || '%'`, table)
}

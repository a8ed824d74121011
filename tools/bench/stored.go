package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Keys and payments in the numbers of busy days, made by SQL, so that the books balance: the keys are of the days that are kept, today and three
// more, and of requests that were refused without a payment, the payments are declined ones, which have no entries, of a month ago, when keys and events were others. Keys are random, so
// their index is as full as one that grew day by day.
const client = `(SELECT c.id, c.tenant_id FROM clients c JOIN tenants t ON t.id = c.tenant_id WHERE t.name = '` + tenant + `') c`

const makeDays = `
DO $$ DECLARE d date; BEGIN
    FOR i IN 1..3 LOOP
        d := (now() AT TIME ZONE 'utc')::date - i;
        EXECUTE format('CREATE TABLE %I PARTITION OF idempotency_keys FOR VALUES FROM (%L) TO (%L)', 'idempotency_keys_' || to_char(d, 'YYYYMMDD'), d, d + 1);
    END LOOP;
END $$`

const storeKeys = `
INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, day, fingerprint_version, fingerprint, request_id, status, content_type, location, body)
SELECT c.tenant_id, c.id, k.key, substr(sha256(uuid_send(c.tenant_id) || uuid_send(c.id) || k.key::bytea), 1, 16), (now() AT TIME ZONE 'utc')::date - k.age, 1, sha256(k.key::bytea), k.key, 422, 'application/problem+json', '',
  convert_to('{"type":"unknown-account","title":"Unknown account","status":422,"detail":"There is no account ' || k.key ||
    '. No money moved.","instance":"/api/v1/payments","code":"unknown-account","retry":"new-key","padding":"' || repeat(k.key, 4) || '"}', 'UTF8')
FROM ` + client + `, (SELECT gen_random_uuid()::text AS key, (n % 4)::int AS age FROM generate_series(1, $1) n) k`

const storePayments = `
INSERT INTO payments (id, tenant_id, status, decline_code, version, amount_minor, currency, source_account, destination_account, description, metadata,
  client_reference, processed_at, client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
SELECT (lpad(to_hex((extract(epoch FROM t.past) * 1000)::bigint - $1 + n), 12, '0') || '7' || right(md5(n::text), 3) || '8' || right(md5((-n)::text), 15))::uuid,
  c.tenant_id, 'declined', 'insufficient-funds', 1, 100 + n % 900, 'USD', a.ids[1 + n % a.many], a.ids[1 + (n + 1) % a.many],
  'Invoice 2026-001742, October', jsonb_build_object('customer', 'c-' || n), 'order-' || n, t.past, c.id,
  md5(n::text), sha256(n::text::bytea), 1, 'POST', '/api/v1/payments', md5((-n)::text)
FROM ` + client + `,
  LATERAL (SELECT array_agg(id ORDER BY md5(id::text)) AS ids, count(*)::int AS many FROM accounts WHERE kind = 'customer' AND tenant_id = c.tenant_id) a,
  (SELECT now() - interval '30 days' AS past) t, generate_series(1, $1) n`

// measureStored compares a database that holds many keys, and then many payments as well, with one that holds none.
func (b *bench) measureStored(ctx context.Context) error {
	full, err := b.server.fresh(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = b.server.release(context.WithoutCancel(ctx), full) }() // the server's directory goes with it
	for _, what := range []struct {
		name, ratio string
		fill        []string
	}{
		{"keys", "stored", []string{makeDays, storeKeys}},
		{"keys and payments", "stored_payments", []string{storePayments}},
	} {
		b.say("storing %d %s; this takes minutes", b.stored, what.name)
		if err := b.fill(ctx, full, what.fill); err != nil {
			return err
		}
		if err := b.byTurns(ctx, full, what.name, what.ratio); err != nil {
			return fmt.Errorf("with %d %s stored: %w", b.stored, what.name, err)
		}
	}
	return nil
}

// byTurns has an API on either database, and asks now the one and now the other, so that what is compared lies seconds apart.
func (b *bench) byTurns(ctx context.Context, full database, what, figure string) error {
	on := setup{group: true, database: &full}
	return b.session(ctx, on, func(large *session) error {
		on.database = nil
		err := b.session(ctx, on, func(none *session) error {
			for range b.rounds {
				if err := b.compareStored(ctx, large, none, what, figure); err != nil {
					return err
				}
			}
			return nil
		})
		b.say("checking the books of the large database; this takes minutes")
		return err
	})
}

// compareStored is a round of three windows each. After a checkpoint the first change of a page writes the whole of it to the log. That is a matter of
// minutes in the life of a server, so the large database, where nearly every payment meets such pages, is warmed up for longer; the next
// checkpoint is the next round's.
func (b *bench) compareStored(ctx context.Context, large, none *session, what, figure string) error {
	if err := b.server.execute(ctx, b.server.admin(), `CHECKPOINT`); err != nil {
		return err
	}
	st := stretch{connections: b.connections, warm: 20 * time.Second, long: b.window()}
	for range 3 {
		many, err := large.measure(ctx, st)
		if err != nil {
			return err
		}
		st.warm = b.warm()
		few, err := none.measure(ctx, st)
		if err != nil {
			return err
		}
		b.say("with %d %s stored %.0f payments/s (log %.0f B, Postgres %.0f µs each), with none %.0f (%.0f B, %.0f µs)", b.stored, what,
			many.perSecond, many.wal, many.dbTime, few.perSecond, few.wal, few.dbTime)
		b.figures.add(figure+"_per_s", many.perSecond)
		b.figures.add(figure+"_none_per_s", few.perSecond)
		b.figures.add(figure+"_ratio", many.perSecond/few.perSecond)
		for name, m := range map[string]measured{figure: many, figure + "_none": few} {
			b.figures.add(name+"_claim_p50_ms", 1000*m.claims.atMost(.5))
			b.figures.add(name+"_claim_p99_ms", 1000*m.claims.atMost(.99))
		}
	}
	return nil
}

func (b *bench) fill(ctx context.Context, d database, statements []string) error {
	conn, err := connect(ctx, d.owner)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off; SET work_mem = '512MB'; SET maintenance_work_mem = '512MB'`); err != nil {
		return fmt.Errorf("store keys and payments: %w", err)
	}
	for _, sql := range append(statements, `VACUUM ANALYZE`) {
		var args []any
		if strings.Contains(sql, "$1") {
			args = append(args, b.stored)
		}
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("store keys and payments: %w", err)
		}
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oncepay/oncepay/tools/rig"
)

// Keys and payments in the numbers of busy days, made by SQL, so that the books balance. The keys
// are of the days that are kept, today and three more, and of requests that were refused without a
// payment. The payments are declined ones, which have no entries, of a month ago, when keys and
// events were others. Keys are random, so their index is as full as one that grew day by day.
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
FROM ` + client + `, (SELECT gen_random_uuid()::text AS key, (n % 4)::int AS age FROM generate_series(1, {n}) n) k`

const storePayments = `
INSERT INTO payments (id, tenant_id, status, decline_code, version, amount_minor, currency, source_account, destination_account, description, metadata,
  client_reference, processed_at, client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
SELECT (lpad(to_hex((extract(epoch FROM t.past) * 1000)::bigint - {n} + n), 12, '0') || '7' || right(md5(n::text), 3) || '8' || right(md5((-n)::text), 15))::uuid,
  c.tenant_id, 'declined', 'insufficient-funds', 1, 100 + n % 900, 'USD', a.ids[1 + n % a.many], a.ids[1 + (n + 1) % a.many],
  'Invoice 2026-001742, October', jsonb_build_object('customer', 'c-' || n), 'order-' || n, t.past, c.id,
  md5(n::text), sha256(n::text::bytea), 1, 'POST', '/api/v1/payments', md5((-n)::text)
FROM ` + client + `,
  LATERAL (SELECT array_agg(id ORDER BY md5(id::text)) AS ids, count(*)::int AS many FROM accounts WHERE kind = 'customer' AND tenant_id = c.tenant_id) a,
  (SELECT now() - interval '30 days' AS past) t, generate_series(1, {n}) n`

// fast makes one connection store much.
const fast = `SET synchronous_commit = off; SET work_mem = '512MB'; SET maintenance_work_mem = '512MB'`

// measureStored compares a database that holds many keys, and then many payments as well, with one
// that holds none.
func (b *intakeBench) measureStored(ctx context.Context) error {
	full, _, err := b.fresh(ctx)
	if err != nil {
		return err
	}

	for _, name := range []string{"stored", "stored_payments"} {
		fill := []string{fast, makeDays, storeKeys}
		if name == "stored_payments" {
			fill = []string{fast, storePayments}
		}
		b.Say("storing %d rows for %s; this takes minutes", b.stored, name)
		for i, sql := range fill {
			fill[i] = strings.ReplaceAll(sql, "{n}", strconv.Itoa(b.stored))
		}
		if err := rig.Execute(ctx, b.owner(full), append(fill, `VACUUM ANALYZE`)...); err != nil {
			return err
		}

		none, drop, err := b.fresh(ctx)
		if err != nil {
			return err
		}

		err = b.session(ctx, scenario{group: true}, full, func(large *session) error {
			err := b.session(ctx, scenario{group: true}, none, func(small *session) error {
				return b.byTurns(ctx, large, small, name)
			})
			b.Say("checking the books of the large database; this takes minutes")
			return err
		})
		drop()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}

	return nil
}

// byTurns measures now the one and now the other, so that what is compared lies seconds apart: in
// each round three windows after a checkpoint. After that the first change of a page writes the
// whole of it to the log. In the life of a server that is a matter of minutes, so the large
// database, where nearly every payment meets such pages, is warmed up for longer.
func (b *intakeBench) byTurns(ctx context.Context, large, small *session, name string) error {
	for range b.rounds {
		if err := rig.Execute(ctx, b.owner("postgres"), `CHECKPOINT`); err != nil {
			return err
		}

		longer := 20 * time.Second
		for range 3 {
			if _, err := large.measure(ctx, stretch{name: name, warm: longer}); err != nil {
				return err
			}

			longer = warm
			if _, err := small.measure(ctx, stretch{name: name + "_none", warm: warm}); err != nil {
				return err
			}
		}
	}

	return nil
}

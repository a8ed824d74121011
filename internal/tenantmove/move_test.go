package tenantmove_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/tenantmove"
	"github.com/oncepay/oncepay/internal/testenv"
)

// cluster is a database, and the relay's cursor behind all of its events.
type cluster struct {
	*pgxpool.Pool
	t *testing.T
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{testenv.Database(t).Pool(t, ""), t}
	c.exec(`INSERT INTO idempotency_retention (keep) VALUES ('72 hours')`)
	return c
}

func (c cluster) exec(query string, args ...any) {
	c.t.Helper()
	if _, err := c.Exec(c.t.Context(), query, args...); err != nil {
		c.t.Fatalf("%s: %v", query, err)
	}
}

func (c cluster) lines(query string, args ...any) string {
	c.t.Helper()
	rows, _ := c.Query(c.t.Context(), query, args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		c.t.Fatalf("%s: %v", query, err)
	}
	return strings.Join(all, "\n")
}

// passed puts the relay's cursor behind all events.
func (c cluster) passed() {
	c.t.Helper()
	c.exec(`INSERT INTO outbox_cursors (relay, last_id, seen, system_identifier, database_oid)
		SELECT 'main', coalesce(max(id), 0), pg_current_snapshot(), 0, 0 FROM outbox_events
		ON CONFLICT (relay) DO UPDATE SET last_id = excluded.last_id, seen = excluded.seen`)
}

// fill makes a tenant with rows in every table. The account's entries from before entry 3 are gone,
// as those of a closed month may be.
func (c cluster) fill(name string) uuid.UUID {
	c.t.Helper()
	tenant := uuid.New()
	for _, insert := range []string{
		`INSERT INTO tenants (id, name) VALUES ($1, $2)`,
		`INSERT INTO clients (id, tenant_id, name) VALUES ($1, $1, $2)`,
		`INSERT INTO credentials (id, client_id, secret_hash) VALUES (substr(md5($2), 1, 16), $1, sha256($2::bytea))`,
		`INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, entry_count, name)
			VALUES ($1, $1, 'customer', 'USD', 10, 4, $2), (gen_random_uuid(), $1, 'system', 'USD', 0, 0, $2)`,
		`INSERT INTO ledger_entries (account_id, tenant_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
			SELECT $1, $1, n, gen_random_uuid(), $1, 'USD', 5, (n - 2) * 5, now() FROM generate_series(3, 4) n WHERE $2 <> ''`,
		`INSERT INTO ledger_openings (account_id, tenant_id, entry_no, balance_minor) SELECT $1, $1, 2, 0 WHERE $2 <> ''`,
		`INSERT INTO payments (id, tenant_id, status, version, amount_minor, currency, source_account, destination_account, processed_at,
				client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id, authorization_expires_at)
			SELECT $1, $1, 'authorized', 1, 5, 'USD', $1, gen_random_uuid(), now(), $1, $2, '\x00ff', 1, 'POST', '/x', 'r', now() + interval '1 hour'`,
		`INSERT INTO refunds (id, tenant_id, payment_id, payment_version, status, amount_minor, currency, source_account, destination_account, processed_at, reason)
			SELECT $1, $1, $1, 2, 'completed', 1, 'USD', $1, $1, now(), $2`,
		`INSERT INTO payment_commands (tenant_id, payment_id, version, client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id, processed_at)
			SELECT $1, $1, 2, $1, $2, '', 1, 'POST', '/x', 'r', now()`,
		`SELECT idempotency_keys_make_day(((now() AT TIME ZONE 'utc') - interval '3 days')::date), $1::uuid, $2::text`,
		`INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, day, fingerprint, fingerprint_version, request_id, status, content_type, location, body)
			SELECT $1, $1, $2, substr(sha256(($2 || n)::bytea), 1, 16), (now() AT TIME ZONE 'utc')::date - n, sha256(''), 1, 'r', 201, 'application/json', '', '\x7b000a7d'
			FROM generate_series(0, 3, 3) n`,
		`INSERT INTO psp_operations (id, tenant_id, payment_id, kind, amount_minor, currency, created_at, state, tries, first_tried_at, ended_at, reference)
			SELECT $1, $1, $1, 'charge', 5, 'USD', now(), 'succeeded', 1, now(), now(), $2`,
		`INSERT INTO webhook_endpoints (id, tenant_id, url, secret, created_at, state_since) SELECT $1, $1, $2, 's', now(), now()`,
		`INSERT INTO webhook_deliveries (endpoint_id, tenant_id, event_id, event_type, subject, body)
			SELECT $1, $1, gen_random_uuid(), 't', n, $2::bytea FROM generate_series(1, 20) n`,
	} {
		c.exec(insert, tenant, name)
	}
	return tenant
}

const patience = 20 * time.Second

func TestMoveTakesAllOfOneTenantAndNothingElse(t *testing.T) {
	t.Parallel()
	source, target := newCluster(t), newCluster(t)
	other, tenant, there := source.fill("other"), source.fill("acme"), target.fill("there")
	source.passed()

	r, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
	if err != nil {
		t.Fatal(err)
	}
	for table, n := range r.Rows {
		if n == 0 {
			t.Errorf("no row of %s: the test shows nothing", table)
		}
		query := fmt.Sprintf(`SELECT r::text FROM (SELECT * FROM %s) r WHERE r::text LIKE '%%' || $1 || '%%' ORDER BY 1`, table)
		if table == "webhook_deliveries" { // ids are the target's own, in the same order
			query = `SELECT subject || convert_from(body, 'UTF8') || event_id FROM webhook_deliveries WHERE tenant_id::text = $1 ORDER BY id`
		}
		if was, is := source.lines(query, tenant.String()), target.lines(query, tenant.String()); was != is {
			t.Errorf("%s was\n%s\nis\n%s", table, was, is)
		}
		if target.lines(query, other.String()) != "" {
			t.Errorf("%s: another tenant has come along", table)
		}
		if target.lines(query, there.String()) == "" {
			t.Errorf("%s: the target has lost a row", table)
		}
	}
	if got := source.lines(`SELECT tenant_id || state FROM tenant_moves`); got != tenant.String()+"left" {
		t.Errorf("the source says %s", got)
	}

	if oldest := source.lines(`SELECT max(oldest_program)::text FROM schema_files`); oldest != "14" {
		t.Errorf("programs from %s on may start where the tenant was", oldest)
	}

	again, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
	if err != nil || len(again.Rows) != 0 {
		t.Errorf("again: %+v, %v", again, err)
	}
	if err := tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant); !errors.Is(err, tenantmove.ErrRefused) {
		t.Errorf("it has left, but stays: %v", err)
	}
	_, err = tenantmove.Move(t.Context(), source.Pool, newCluster(t).Pool, tenant, patience)
	if !errors.Is(err, tenantmove.ErrRefused) {
		t.Errorf("to a third cluster: %v", err)
	}
	_, err = tenantmove.Move(t.Context(), target.Pool, source.Pool, tenant, patience)
	if !errors.Is(err, tenantmove.ErrRefused) {
		t.Errorf("back: %v", err)
	}
}

// A copy may take longer than a database allows. transaction_timeout is looked at where there is one, since Postgres 17.
func TestNoLimitEndsACopy(t *testing.T) {
	t.Parallel()
	const limits = `name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')`
	source, target := newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	target.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE names text; BEGIN
		SELECT string_agg(name, ', ') INTO names FROM pg_settings WHERE setting <> '0' AND ` + limits + `;
		IF names <> '' THEN RAISE 'it has %', names; END IF;
		RETURN NEW; END $$`)
	target.exec(`CREATE TRIGGER refuse BEFORE INSERT ON tenants FOR EACH ROW EXECUTE FUNCTION refuse()`)
	target.exec(`DO $$ DECLARE s text; BEGIN
		FOR s IN SELECT name FROM pg_settings WHERE ` + limits + ` LOOP
			EXECUTE format('ALTER DATABASE %I SET %I = ''1h''', current_database(), s);
		END LOOP; END $$`)
	target.Reset() // connections from now on have them

	if _, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience); err != nil {
		t.Error(err)
	}
}

// A day that is forgotten already, but was not dropped yet, has no place at the target.
func TestForgottenKeysStayBehind(t *testing.T) {
	t.Parallel()
	source, target := newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	source.exec(`SELECT idempotency_keys_make_day((now() AT TIME ZONE 'utc')::date - 9)`)
	source.exec(`INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, day, fingerprint, fingerprint_version, request_id, status, content_type, location, body)
		SELECT tenant_id, client_id, key, key_hash, day - 9, fingerprint, 1, '', 201, '', '', '' FROM idempotency_keys ORDER BY day DESC LIMIT 1`)

	r, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
	if err != nil || r.Rows["idempotency_keys"] != 2 {
		t.Errorf("%d keys, %v", r.Rows["idempotency_keys"], err)
	}
}

// TestEveryTableWithATenantMovesOrNot: a new table cannot be forgotten.
func TestEveryTableWithATenantMovesOrNot(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	got := c.lines(`
SELECT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY c.relname COLLATE "C"`)
	if want := strings.Join(tenantmove.TablesWithTenant(), "\n"); got != want {
		t.Errorf("tables with a tenant are\n%s\nbut in copy.go\n%s", got, want)
	}
}

func TestMoveWaitsForWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	const event = `INSERT INTO outbox_events (event_id, tenant_id, aggregate_type, aggregate_id, event_type, payload)
		VALUES ($1, $1, 'payments', 'a', 'payment.completed', '')`
	for name, c := range map[string]struct {
		before func(source cluster, tenant uuid.UUID) // the cursor passes what it does
		after  string
		want   string
	}{
		"an operation at the PSP": {after: `UPDATE psp_operations SET state = 'unknown', ended_at = NULL WHERE tenant_id = $1`, want: "1 operations are with the PSP"},
		"an event":                {after: event, want: "1 events wait for the relay"},
		"no relay":                {after: `DELETE FROM outbox_cursors WHERE $1::uuid IS NOT NULL`, want: "1 events wait for the relay"},
		"a straggler":             {after: event + `; UPDATE outbox_cursors SET last_id = last_id + 100`, want: "1 events wait for the relay"},
		"a dead letter": {after: `INSERT INTO outbox_dead_letters (relay, id, xid, event_id, tenant_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at)
			VALUES ('main', 1, '1', $1, $1, 'payments', 'a', 't', '', '{}', now())`, want: "1 dead letters wait"},
		"a webhook in flight": {after: `UPDATE webhook_deliveries SET in_flight = true, next_try_at = now() + interval '1 hour' WHERE subject = '1' AND tenant_id = $1`, want: "1 webhooks are being sent"},
		"an event that is no webhook yet": {before: func(s cluster, tenant uuid.UUID) { s.exec(event, tenant) },
			want: "1 events wait for the worker"},
		"an open transaction": {before: func(s cluster, _ uuid.UUID) {
			tx, err := s.Begin(s.t.Context())
			if err != nil {
				s.t.Fatal(err)
			}
			s.t.Cleanup(func() { _ = tx.Rollback(s.t.Context()) })
			if _, err := tx.Exec(s.t.Context(), `SELECT`); err != nil {
				s.t.Fatal(err)
			}
		}, want: "1 transactions are open"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := newCluster(t), newCluster(t)
			tenant := source.fill("acme")
			if c.before != nil {
				c.before(source, tenant)
			}
			source.passed()
			for _, statement := range strings.Split(c.after, ";") {
				if strings.Contains(statement, "$1") {
					source.exec(statement, tenant)
				} else if statement != "" {
					source.exec(statement)
				}
			}

			var err error
			for range 5 { // the machine may pause for longer than that
				_, err = tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, 500*time.Millisecond)
				if err == nil || strings.Contains(err.Error(), c.want) {
					break
				}
			}
			if !errors.Is(err, tenantmove.ErrBusy) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if n := target.lines(`SELECT name FROM tenants`); n != "" {
				t.Errorf("the target has %s", n)
			}
			if got := source.lines(`SELECT state FROM tenant_moves`); got != "leaving" {
				t.Errorf("the source says %q", got)
			}
			if err := tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant); err != nil {
				t.Error(err)
			}
			if got := source.lines(`SELECT state FROM tenant_moves`); got != "" {
				t.Errorf("it stays, but the source says %q", got)
			}
		})
	}
}

// TestMoveNoticesWhatDiffers: what arrives otherwise is not committed, and the tenant may stay.
func TestMoveNoticesWhatDiffers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ source, target, want string }{
		"a row that changes on its way": {target: `CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.reason := 'x'; RETURN NEW; END $$;
			CREATE TRIGGER change BEFORE INSERT ON refunds FOR EACH ROW EXECUTE FUNCTION change()`, want: "refunds differs"},
		"a row that gets lost": {target: `CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
			CREATE TRIGGER lose BEFORE INSERT ON refunds FOR EACH ROW EXECUTE FUNCTION lose()`, want: "1 rows were sent, 0 arrived"},
		"another schema":      {target: `ALTER TABLE refunds ADD COLUMN more text`, want: "refunds has other columns"},
		"a balance":           {source: `UPDATE accounts SET balance_minor = 11 WHERE kind = 'customer'`, want: "1 accounts have another balance"},
		"a number of entries": {source: `UPDATE accounts SET entry_count = 5 WHERE kind = 'customer'`, want: "1 accounts have another balance"},
		"an opening without entries": {source: `UPDATE ledger_openings SET entry_no = 4; DELETE FROM ledger_entries`,
			want: "1 accounts have another balance"},
		"a gap before the entries": {source: `UPDATE ledger_openings SET entry_no = 1, balance_minor = 0`,
			want: "1 accounts have another balance"},
		"a name that is taken": {target: `INSERT INTO tenants (id, name) VALUES (gen_random_uuid(), 'acme')`, want: "tenants_name_key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := newCluster(t), newCluster(t)
			tenant := source.fill("acme")
			source.passed()
			source.exec(c.source)
			target.exec(c.target)

			_, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if n := target.lines(`SELECT 'client' FROM clients`); n != "" {
				t.Error("the target has a part of it")
			}
			if err := tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFrozenMoveCannotFinish: the lock of a command goes with its connection, its attempt does not.
func TestFrozenMoveCannotFinish(t *testing.T) {
	t.Parallel()
	source, target := newCluster(t), newCluster(t)
	tenant := source.fill("acme")
	source.passed()
	target.exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$`)
	target.exec(`CREATE TRIGGER wait BEFORE INSERT ON webhook_endpoints FOR EACH ROW EXECUTE FUNCTION wait()`)
	stuck, err := target.Begin(t.Context())
	if err == nil {
		_, err = stuck.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	}
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = stuck.Rollback(context.Background()) }()
	frozen := make(chan error, 1)
	go func() {
		_, err := tenantmove.Move(t.Context(), source.Pool, target.Pool, tenant, patience)
		frozen <- err
	}()
	testenv.Eventually(t, patience, func() error {
		if target.lines(`SELECT 'x' FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == "" {
			return errors.New("it is not stuck")
		}
		return nil
	})

	// Its lock is gone, but not what it does at the target: it may have noted that the tenant has left.
	source.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'
		AND classid::bigint << 32 | objid::bigint = hashtextextended('tenant move ' || $1::uuid::text, 0)`, tenant)
	err = tenantmove.Stay(t.Context(), source.Pool, target.Pool, tenant)
	if !errors.Is(err, tenantmove.ErrRefused) || !strings.Contains(err.Error(), "is being copied") {
		t.Errorf("it stays beside a copy: %v", err)
	}

	// The tenant stays all the same, and begins to leave again.
	noted := source.lines(`SELECT target FROM tenant_moves`)
	if err := tenantmove.StayWithoutTarget(t.Context(), source.Pool, noted, tenant); err != nil {
		t.Error(err)
	}
	source.exec(`INSERT INTO tenant_moves (tenant_id, target) VALUES ($1, $2)`, tenant, noted)
	if err := stuck.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-frozen; !errors.Is(err, tenantmove.ErrRefused) {
		t.Errorf("it went on: %v", err)
	}
	if n := target.lines(`SELECT name FROM tenants`); n != "" {
		t.Errorf("the target has %s", n)
	}
}

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

const anEvent = `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('payments', 'a', 'e', '')`

// aCursor stands behind all that is visible now.
const aCursor = `
INSERT INTO outbox_cursors (relay, last_id, seen, system_identifier, database_oid, holder, lease_until, fencing_token)
SELECT 'main', (SELECT max(id) FROM outbox_events), pg_current_snapshot(), system_identifier, 1, 'relay-7', clock_timestamp() + interval '1 hour', 3 FROM pg_control_system()`

func TestTheOutboxBeforeAnyRelay(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	env := owner(db.URL)
	for range 3 {
		if _, err := db.Pool(t, "").Exec(t.Context(), anEvent); err != nil {
			t.Fatal(err)
		}
	}
	var v outboxView
	mustJSON(t, &v, env, "outbox")
	if v.Backlog.Events != 3 || v.Backlog.OldestAgeSeconds <= 0 || v.Relays == nil || len(v.Relays) != 0 || v.Writer != nil || !v.Writers {
		t.Errorf("%+v", v)
	}
	if p := v.Partitions; p.DaysAhead != 7 || p.Kept != 8 || len(p.Oldest) != len(time.DateOnly) {
		t.Errorf("partitions: %+v", p)
	}
	out := must(t, env, "outbox")
	for _, want := range []string{"no relay has run here yet", "backlog  3  ", "oldest writer  none\n", "partitions     8  oldest 20", "days ahead     7\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
}

func TestTheOutboxShowsCursorBacklogAndStragglers(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	env := owner(db.URL)
	pool := db.Pool(t, "")
	exec := func(query string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	look := func() (v outboxView) {
		t.Helper()
		mustJSON(t, &v, env, "outbox")
		if len(v.Relays) != 1 {
			t.Fatalf("relays: %+v", v.Relays)
		}
		return v
	}
	late, err := pool.Begin(t.Context()) // draws its id before the cursor passes, commits behind it
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(context.Background())
	if _, err := late.Exec(t.Context(), `SET application_name = 'a batch job'`); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), anEvent); err != nil {
		t.Fatal(err)
	}
	exec(anEvent)
	exec(aCursor)

	exec(`UPDATE outbox_cursors SET lease_until = now() + interval '1 hour'`)
	exec(`INSERT INTO outbox_dead_letters (relay, id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, refusal)
		SELECT 'main', id, xid, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, 'too large' FROM outbox_events`)
	if out := must(t, env, "outbox"); !strings.Contains(out, "relay-7  ") || !strings.Contains(out, "refused        1 (decide with relay dead-letters)\nparked         1\n") {
		t.Errorf("of a leader, and an event that was refused:\n%s", out)
	}

	v := look()
	if r := v.Relays[0]; r.Relay != "main" || r.LastID != 2 || !r.Leads || r.Holder != "relay-7" || r.FencingToken != 3 || r.Stragglers != 0 || r.Backlog.Events != 0 {
		t.Errorf("relay: %+v", r)
	}
	if w := v.Writer; w == nil || w.Application != "a batch job" || w.PID == 0 || w.State != "idle in transaction" || w.AgeSeconds <= 0 {
		t.Errorf("oldest writer: %+v", w)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(anEvent) // and one above the cursor
	v = look()
	if r := v.Relays[0]; r.Stragglers != 1 || r.Backlog.Events != 1 || v.Backlog != r.Backlog || v.Writer != nil {
		t.Errorf("relay: %+v", v)
	}
	exec(`UPDATE outbox_cursors SET lease_until = '-infinity'`)
	out := must(t, env, "outbox")
	if !strings.Contains(out, "NOBODY  -      3\n") {
		t.Errorf("without a leader:\n%s", out)
	}
	exec(`UPDATE outbox_cursors SET lease_until = now() - interval '1 hour'`) // it has run out
	if out := must(t, env, "outbox"); !strings.Contains(out, "NOBODY") {
		t.Errorf("with a leader that is gone:\n%s", out)
	}
	exec(`UPDATE outbox_cursors SET chunk_after = 1, chunk_seen = pg_current_snapshot()`) // it was sent, in a chunk
	if r := look().Relays[0]; r.Stragglers != 0 {
		t.Errorf("sent in a chunk: %+v", r)
	}
	// A cursor that had seen none of the transactions: the first two events are behind it, the third is above.
	exec(`UPDATE outbox_cursors SET chunk_after = NULL, chunk_seen = NULL, seen = (SELECT format('%s:%s:', xid, xid)::pg_snapshot FROM outbox_events WHERE id = 1)`)
	if r := look().Relays[0]; r.Stragglers != 2 || r.Backlog.Events != 1 {
		t.Errorf("from xmax on: %+v", r)
	}
}

// explained keeps the plan of a query before it runs it.
type explained struct {
	pgx.Tx
	plan *string
}

func (e explained) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, _ := e.Tx.Query(ctx, `EXPLAIN `+sql, args...) // CollectRows returns its error
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	*e.plan = strings.Join(lines, "\n")
	return e.Tx.Query(ctx, sql, args...)
}

func TestALargeOutboxIsReadByItsIndexesAnalysedOrNot(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	o := operator{func(name string) string { return owner(db.URL)[name] }}
	pool, err := o.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, query := range []string{
		`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) SELECT 'payments', 'a', 'e', '' FROM generate_series(1, 20000)`,
		aCursor,
		`ANALYZE outbox_events`,
	} {
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
		var plan string
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := relay.Cursors(t.Context(), explained{tx, &plan})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if plan == "" {
			t.Fatal("no plan")
		}
		for _, slow := range []string{"Seq Scan", "Hash Join", "Merge Join", "JIT"} {
			if strings.Contains(plan, slow) {
				t.Fatalf("after %s: %s in\n%s", query, slow, plan)
			}
		}
	}
}

func TestALoginThatMayNotSeeWritersIsToldSo(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	if out := must(t, owner(db.URLAs("relay")), "outbox"); !strings.Contains(out, "not to be seen: this login lacks pg_read_all_stats") {
		t.Errorf("out:\n%s", out)
	}
}

func TestAgesAreReadable(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]float64{"1.5s": 1.5, "2m0s": 120, "0s": 0.0001, "26h0m0.25s": (26 * time.Hour).Seconds() + 0.25} {
		if got := seconds(s); got != want {
			t.Errorf("%v s: %s, want %s", s, got, want)
		}
	}
}

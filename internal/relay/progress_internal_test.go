package relay

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// A relay that died with progress ahead may come back after days of writing.
func TestProgressComparisonSkipsLaterEvents(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "")
	const write = `
		INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'things', 'a', 'thing.changed', '{}' FROM generate_series(1, $1::int)`
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := owner.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}

	term, err := elect(t.Context(), db.Pool(t, "relay"), "main", "test", time.Hour)
	if err != nil || term == nil {
		t.Fatal(term, err)
	}
	var at [2]Position
	from := term.at
	exec(write, 100_000)
	err = owner.QueryRow(t.Context(), `SELECT max(id), pg_current_snapshot()::text FROM outbox_events`).
		Scan(&from.Last, &from.Seen)
	if err != nil {
		t.Fatal(err)
	}
	for i := range at {
		exec(write, 10)
		var b batch
		if err := b.read(t.Context(), term.db, 100, from); err != nil {
			t.Fatal(err)
		}
		at[i], from = b.next, b.next
	}
	exec(write, 100_000)
	exec(`VACUUM ANALYZE outbox_events`)

	p, q := at[0], at[1]
	var text string
	err = owner.QueryRow(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+readBetween,
		p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen,
		q.Last, q.Seen, q.ChunkAfter, q.ChunkSeen, "main").Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
			Rows int `json:"Actual Rows"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	if got := plans[0].Plan; got.Rows != 10 || got.Hit+got.Read > 150 {
		t.Errorf("%d rows from %d pages, want 10 from a few:\n%s", got.Rows, got.Hit+got.Read, text)
	}
}

package relay

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/testenv"
)

// TestReadPassesNothingOfNewPartition: a read is planned, and held up by a lock; meanwhile a partition is attached and written to, and
// another one is written to behind that. The read does not look at the new one. So it must not see what came behind, either.
func TestReadPassesNothingOfNewPartition(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner, relay := db.Pool(t, ""), db.Pool(t, "relay")
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox_events_`+time.Now().UTC().Format("20060102")); err != nil {
		t.Fatal(err)
	}

	found := make(chan *batch, 1)
	go func() {
		b := &batch{}
		b.err = b.read(t.Context(), relay, 10, Position{Seen: "3:3:"})
		found <- b
	}()
	testenv.Eventually(t, time.Minute, func() error {
		var waits bool
		err := owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND usename = 'relay' AND wait_event_type = 'Lock')`).Scan(&waits)
		if err == nil && !waits {
			err = errors.New("the read does not wait")
		}
		return err
	})
	for _, sql := range []string{
		`CREATE TABLE outbox_events_later (LIKE outbox_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS)`,
		`ALTER TABLE outbox_events ATTACH PARTITION outbox_events_later FOR VALUES FROM ('2100-01-01') TO ('2100-01-02')`,
		`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('things', 'a', 'e', '', '2100-01-01 12:00Z')`,
		`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('things', 'a', 'e', '', now() + interval '1 day')`,
	} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := <-found
	if b.err != nil {
		t.Fatal(b.err)
	}
	got := ids(b.messages())
	if err := b.read(t.Context(), relay, 10, b.next); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{1, 2}, append(got, ids(b.messages())...)); diff != "" {
		t.Errorf("ids of two reads (-want +got):\n%s", diff)
	}
}

package relay_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/outbox"
)

func events(n int) (es []outbox.Event) {
	for i := range n {
		es = append(es, outbox.Event{
			ID: uuid.New(), AggregateType: "things", AggregateID: fmt.Sprint(i % 3), AggregateVersion: int64(i/3 + 1), Type: "thing.changed",
			Payload: []byte{byte(i), 0, 0xff},
		})
	}
	return es
}

func TestHeadersAreOptional(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	es := events(3)
	es[1].Headers = map[string]string{"traceparent": "00-\"ü\"\\-01", "x": ""}
	es[2].Headers = map[string]string{}
	if err := pgx.BeginFunc(t.Context(), d.owner, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, es) }); err != nil {
		t.Fatal(err)
	}
	// The least that a writer in SQL names.
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('things', 'a', 'thing.changed', '{}')`)
	start(t, d.relay, b.Open, nil)
	b.waitFor(t, 4)
	got := b.received()
	for i, want := range []map[string]string{{}, es[1].Headers, {}, {}} {
		var headers map[string]string
		if err := json.Unmarshal(got[i].Headers, &headers); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, headers); diff != "" {
			t.Errorf("headers of message %d: %s", i, diff)
		}
	}
	if got[3].AggregateVersion != nil || got[3].EventID == uuid.Nil {
		t.Errorf("version %v, event id %v", got[3].AggregateVersion, got[3].EventID)
	}
}

func TestAppendRolledBackLeavesNothing(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	undone := errors.New("undone")
	err := pgx.BeginFunc(t.Context(), d.owner, func(tx pgx.Tx) error {
		return errors.Join(undone, outbox.Append(t.Context(), tx, events(3)))
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	if n := ask[int](t, d, `SELECT count(*) FROM outbox_events`); n != 0 {
		t.Errorf("%d rows", n)
	}
	want := d.commit(t, "a") // behind a gap of three ids
	start(t, d.relay, b.Open, nil)
	b.waitFor(t, 1)
	complete(t, b.received(), want)
}

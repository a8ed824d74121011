package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
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

// counter counts statements.
type counter struct{ n atomic.Int32 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAppendWritesInTheOrderOfTheSliceInOneStatement(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	var statements counter
	config.Tracer = &statements
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, n := range []int{0, 1, 2, 500} {
		es := events(n)
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			statements.n.Store(0)
			err := outbox.Append(t.Context(), tx, es)
			if got := int(statements.n.Load()); got != min(n, 1) {
				t.Errorf("%d statements for %d events", got, n)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		rows, err := d.owner.Query(t.Context(), `SELECT event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload
			FROM outbox_events ORDER BY id DESC LIMIT $1`, n)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outbox.Event, err error) {
			return e, row.Scan(&e.ID, &e.AggregateType, &e.AggregateID, &e.AggregateVersion, &e.Type, &e.Payload)
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(got)
		if fmt.Sprint(got) != fmt.Sprint(es) {
			t.Errorf("%d events came back otherwise, or in another order", n)
		}
	}
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

func TestARollbackLeavesNothing(t *testing.T) {
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

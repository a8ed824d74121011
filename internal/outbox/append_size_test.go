package outbox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestAppendRefusesLargeEvent(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	// Each makes the event so many bytes larger.
	for part, grow := range map[string]func(*outbox.Event, int){
		"payload": func(e *outbox.Event, n int) { e.Payload = append(e.Payload, make([]byte, n)...) },
		"headers": func(e *outbox.Event, n int) {
			e.Headers = map[string]string{"traceparent": strings.Repeat("0", n-11-8)}
		},
		"type": func(e *outbox.Event, n int) { e.Type += strings.Repeat("t", n) },
		"id":   func(e *outbox.Event, n int) { e.AggregateID += strings.Repeat("a", n/2) },
	} {
		for _, over := range []int{0, 2} {
			es := events(2)
			const base, grown = 3 + len("thing.changed") + 2*len("1"), 100_000
			es[1].Payload = make([]byte, outbox.MaxEvent-base-grown+3)
			grow(&es[1], grown+over)
			err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, es) })
			want := fmt.Sprintf("append events to outbox: event %s of type %s has %d bytes, more than %d",
				es[1].ID, es[1].Type, outbox.MaxEvent+over, outbox.MaxEvent)
			if over == 0 && err != nil || over > 0 && (err == nil || err.Error() != want) {
				t.Errorf("%s, %d bytes too large: %v", part, over, err)
			}
			if n := count(t, db, `SELECT count(*) FROM outbox_events WHERE event_id IN ($1, $2)`, es[0].ID, es[1].ID); over == 0 && n != 2 || over > 0 && n != 0 {
				t.Errorf("%s, %d bytes too large: %d events were written", part, over, n)
			}
		}
	}
}

func TestAppendRefusesEventWithoutID(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	es := events(2)
	es[1].ID = uuid.Nil
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, es) })
	if err == nil || !strings.Contains(err.Error(), "event 1 of type thing.changed has no id") {
		t.Error(err)
	}
	if n := count(t, db, `SELECT count(*) FROM outbox_events`); n != 0 {
		t.Errorf("%d events were written", n)
	}
}

func TestAppendRefusesProgressTopic(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t).Pool(t, "")
	es := events(2)
	es[1].AggregateType = "relay-progress.main"
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, es) })
	if err == nil || !strings.Contains(err.Error(), es[1].ID.String()+" is of aggregate type relay-progress.main") {
		t.Errorf("append: %v", err)
	}
}

func count(t testing.TB, db *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

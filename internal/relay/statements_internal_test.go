package relay

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// postgres is the history that really happened, read by the real statements, with the position kept in outbox_cursors.
type postgres struct {
	t     *testing.T
	relay *pgxpool.Pool
	limit int
	term  *term
	now   Position
	reads int
	total Ahead
	marks []mark
	conns [6]*pgx.Conn
	open  [6]pgx.Tx
}

// mark is where a cursor was, and what it had passed.
type mark struct {
	at    Position
	total Ahead
}

func (h *postgres) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *postgres) exec(slot int, sql string) {
	h.t.Helper()
	_, err := h.open[slot].Exec(h.t.Context(), sql)
	h.check(err)
}

func (h *postgres) begin(slot int) {
	var err error
	h.open[slot], err = h.conns[slot].Begin(h.t.Context())
	h.check(err)
}

func (h *postgres) touch(slot int) { h.exec(slot, `SELECT pg_current_xact_id()`) }

func (h *postgres) write(slot int, m Message) {
	h.check(outbox.Append(h.t.Context(), h.open[slot], []outbox.Event{{
		ID: m.EventID, AggregateType: m.AggregateType, AggregateID: m.AggregateID, AggregateVersion: *m.AggregateVersion, Type: "thing.changed", Payload: m.Payload,
	}}))
}

func (h *postgres) savepoint(slot int, m Message, keep bool) {
	h.exec(slot, `SAVEPOINT s`)
	h.write(slot, m)
	if keep {
		h.exec(slot, `RELEASE SAVEPOINT s`)
	} else {
		h.exec(slot, `ROLLBACK TO SAVEPOINT s`)
	}
}

func (h *postgres) end(slot int, commit bool) {
	if commit {
		h.check(h.open[slot].Commit(h.t.Context()))
	} else {
		h.check(h.open[slot].Rollback(h.t.Context()))
	}
}

// read is one round of the relay. Every seventh begins with another relay, which knows only what the table says.
func (h *postgres) read() ([]Message, Position) {
	ctx := h.t.Context()
	if h.reads++; h.reads%7 == 1 {
		h.elect(ctx)
	}
	var b batch
	h.check(b.read(ctx, h.relay, h.limit, h.now))
	if b.next.Last < h.now.Last {
		h.t.Errorf("last went down from %d to %d", h.now.Last, b.next.Last)
	}
	if b.next != h.now {
		h.check(h.term.move(ctx, b.next))
		h.compare(ctx, &b)
		h.now = b.next
	}
	return b.messages(), b.next
}

// compare has the database tell what lies between the last places of the cursor and behind b, whatever was committed since.
func (h *postgres) compare(ctx context.Context, b *batch) {
	h.marks = append(h.marks, mark{h.now, h.total})
	h.marks = h.marks[max(0, len(h.marks)-3):]
	for _, m := range b.messages() {
		h.total.add(m.EventID)
	}
	for _, m := range h.marks {
		want := Ahead{m.at.Batches, h.total.Events - m.total.Events, h.total.Hash - m.total.Hash}
		if got, err := h.term.between(ctx, m.at, b.next); err != nil || got != want {
			h.t.Fatalf("between %+v and %+v are %+v, %v, want %+v", m.at, b.next, got, err, want)
		}
	}
}

func (h *postgres) elect(ctx context.Context) {
	if h.term != nil {
		h.term.release(ctx)
	}
	term, err := elect(ctx, h.relay, "main", "test", time.Minute)
	h.check(err)
	if term == nil {
		h.t.Fatal("not elected although the lease was released")
	}
	if h.term != nil && term.at != h.now {
		h.t.Fatalf("the position came back as %+v, not as %+v", term.at, h.now)
	}
	h.term, h.now = term, term.at
}

func TestStatementsReadEachRowOnceInOrder(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2, 5} {
		t.Run(fmt.Sprintf("limit %d", limit), func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			h := &postgres{t: t, relay: db.Pool(t, "relay"), limit: limit}
			for slot := range h.open { // of their own: the pool may have fewer
				var err error
				h.conns[slot], err = pgx.Connect(t.Context(), db.URL)
				h.check(err)
				t.Cleanup(func() { _ = h.conns[slot].Close(context.Background()) })
			}
			if found := tell(uint64(limit), 600, h); len(found) > 0 {
				t.Errorf("faults: %v", found)
			}
		})
	}
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Whatever a term begins with may take longer than the lease.
func TestLeaseIsKeptThroughSlowStart(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]string{
		"dead letters": "outbox_dead_letters",
		"first read":   "outbox_events_" + time.Now().UTC().Format("20060102"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lease = 6 * time.Second
			d, b := newDatabase(t), &broker{}
			short := func(r *relay.Relay) { r.Lease = lease }
			d.commit(t, "a")
			tx := d.begin(t)
			lock := sync.OnceFunc(func() {
				if _, err := tx.Exec(t.Context(), `LOCK TABLE `+table); err != nil {
					t.Error(err)
				}
			})
			one := start(t, d.relay, func(ctx context.Context, relay, cursor string) (relay.Publisher, *relay.Progress, error) {
				lock()
				return b.Open(ctx, relay, cursor)
			}, short)
			next(t, one.leading, "a leader")
			two := start(t, d.relay, b.Open, short)
			began := ask[time.Time](t, d, `SELECT clock_timestamp()`)
			testenv.Eventually(t, soon, func() error {
				if !ask[bool](t, d, `SELECT clock_timestamp() > $1::timestamptz + $2::interval`, began, lease+time.Second) { // a read has 10 s
					return errors.New("the first lease has not run out")
				}
				return nil
			})
			commit(t, tx)
			b.waitFor(t, 1)
			if token := ask[int64](t, d, `SELECT fencing_token FROM outbox_cursors`); token != 1 || len(two.leading) > 0 || len(one.errors) > 0 {
				t.Errorf("fencing token %d, want 1: somebody else led", token)
			}
		})
	}
}

func TestIdleLeaderNoticesThatItWasReplaced(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"another leads":          `UPDATE outbox_cursors SET fencing_token = fencing_token + 1, holder = 'thief'`,
		"the database went back": `UPDATE outbox_cursors SET batches = batches - 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			r := start(t, d.relay, b.Open, func(r *relay.Relay) { r.Lease = 10 * time.Second })
			next(t, r.leading, "a leader")
			d.commit(t, "a")
			d.movedTo(t, 1)
			d.exec(t, change)
			if err := next(t, r.errors, "the end of the term"); !errors.Is(err, relay.ErrFenced) {
				t.Errorf("the term ended with %v", err)
			}
			if ask[bool](t, d, `SELECT lease_until BETWEEN '2000-01-01' AND clock_timestamp() FROM outbox_cursors`) {
				t.Error("it ended when the lease had run out")
			}
		})
	}
}

// The heart beats once in twenty minutes here: it is the move that tells.
func TestFailedMoveStopsTheBatchAtTheBroker(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	sending, stopped := make(chan int, 10), make(chan error, 1)
	b.onPublish = func(ctx context.Context, batch []relay.Message) (int, error) {
		sending <- len(batch)
		if batch[0].AggregateID != "second" {
			return 0, nil
		}
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return 0, ctx.Err()
	}
	d.commit(t, "first")
	r := start(t, d.relay, b.Open, func(r *relay.Relay) { r.Lease, r.Batch = time.Hour, 1 })
	next(t, r.leading, "a leader")
	d.movedTo(t, 1)

	tx := d.begin(t)
	if _, err := tx.Exec(t.Context(), `UPDATE outbox_cursors SET fencing_token = fencing_token + 1, holder = 'thief'`); err != nil {
		t.Fatal(err)
	}
	d.commit(t, "between", "second")
	for range 3 {
		next(t, sending, "a batch")
	}
	commit(t, tx) // what the move of the batch in between waits for
	if err := next(t, stopped, "the batch to be given up"); !errors.Is(err, relay.ErrFenced) {
		t.Errorf("it was given up because of %v", err)
	}
}

// countMoves counts how often the cursor is moved from now on.
func (d database) countMoves(t *testing.T) (count func() int) {
	t.Helper()
	d.exec(t, `CREATE TABLE moves (batches bigint)`)
	d.exec(t, `CREATE FUNCTION count_move() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS
		$$ BEGIN INSERT INTO moves VALUES (NEW.batches); RETURN NULL; END $$`)
	d.exec(t, `CREATE TRIGGER count_move AFTER UPDATE ON outbox_cursors FOR EACH ROW WHEN (OLD.batches <> NEW.batches) EXECUTE FUNCTION count_move()`)
	return func() int { return ask[int](t, d, `SELECT count(*) FROM moves`) }
}

func TestSmallBatchesShareMoves(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	r := start(t, d.relay, b.Open, nil)
	next(t, r.leading, "a leader")
	d.commit(t, "a")
	d.movedTo(t, 1)
	moves, began := d.countMoves(t), time.Now()
	for n := range 100 { // each is a batch of its own
		d.commit(t, fmt.Sprint(n%10))
		b.waitFor(t, n+2)
	}
	d.sentAll(t)
	// At most one in 100 ms; and one more that was under way, and one at the end.
	most := int(time.Since(began)/(100*time.Millisecond)) + 2
	t.Logf("%d moves behind %d batches, at most %d", moves(), len(b.batches), most)
	if n := moves(); n > most {
		t.Errorf("%d moves, want at most %d", n, most)
	}
}

// What a crash repeats has a limit, although moves wait for each other.
func TestUnmovedEventsAreTwoBatchesAtMost(t *testing.T) {
	t.Parallel()
	const size = 4
	d, b := newDatabase(t), &broker{}
	reads := make(chan int, 1000)
	r := start(t, d.relay, b.Open, func(r *relay.Relay) {
		r.Batch = size
		r.OnRead = func(events int, _ time.Duration) { reads <- events }
	})
	next(t, r.leading, "a leader")
	d.commit(t, "a")
	d.movedTo(t, 1)
	next(t, reads, "the first read")

	release := d.holdCursor(t)
	for read := 0; read < 2*size+2; { // one that must not be sent yet, and one that is read ahead
		d.commit(t, "a")
		read += next(t, reads, "a read")
	}
	for range 20 {
		if n := len(b.received()) - 1; n > 2*size {
			t.Fatalf("%d events are sent and not moved behind, want %d at most", n, 2*size)
		}
		<-time.After(10 * time.Millisecond) // nothing is to happen, which nothing tells
	}
	release()
	b.waitFor(t, 2*size+3)
	d.sentAll(t)
}

func TestStopMovesCursorBehindAcknowledged(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	r := start(t, d.relay, b.Open, nil)
	next(t, r.leading, "a leader")
	d.commit(t, "a")
	d.movedTo(t, 1)
	release := d.holdCursor(t) // so a move is under way when
	d.commit(t, "a")
	b.waitFor(t, 2)
	testenv.Eventually(t, soon, func() error {
		if !ask[bool](t, d, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = 'relay' AND wait_event_type = 'Lock')`) {
			return errors.New("no move waits")
		}
		return nil
	})
	d.commit(t, "b") // this one is acknowledged, too
	b.waitFor(t, 3)
	done := make(chan error, 1)
	go func() { done <- r.stop() }()
	release()
	if err := next(t, done, "Run"); err != nil {
		t.Fatal(err)
	}
	if !ask[bool](t, d, `SELECT last_id = 3 AND lease_until = '-infinity' FROM outbox_cursors`) {
		t.Error("the cursor was not moved, or the lease not given back")
	}
}

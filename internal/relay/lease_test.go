package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// steal makes another process leader.
const steal = `UPDATE outbox_cursors SET fencing_token = fencing_token + 1, holder = 'thief', lease_until = clock_timestamp() + '1 hour'`

func TestStoppedRelayHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	d, first, second := newDatabase(t), &broker{}, &broker{}
	one := start(t, d.relay, first.Open, nil) // the lease is a minute: the test would not wait that long
	next(t, one.leading, "a leader")
	two := start(t, d.relay, second.Open, nil)
	for i := range 3 {
		d.commit(t, "a")
		first.waitFor(t, i+1)
	}
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	if !next(t, two.leading, "the standby to lead") {
		t.Error("the standby gave up a lead that it never had")
	}
	d.commit(t, "a")
	second.waitFor(t, 1)
	if got := len(first.received()) + len(second.received()); got != 4 {
		t.Errorf("%d messages, want 4", got)
	}
	if second.opened != 1 || first.open != 0 {
		t.Errorf("the standby opened %d publishers, the first left %d open", second.opened, first.open)
	}
}

func TestVanishedLeaderIsReplacedAfterItsLease(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	before := start(t, d.relay, b.Open, nil) // makes the cursor
	next(t, before.leading, "a leader")
	_ = before.stop()
	d.exec(t, `UPDATE outbox_cursors SET holder = 'gone', lease_until = 'infinity'`)
	early := make(chan bool, 1)
	r := start(t, d.relay, b.Open, func(r *relay.Relay) {
		lead := r.OnLeader
		r.OnLeader = func(leads bool) {
			if leads {
				early <- ask[bool](t, d, `SELECT clock_timestamp() <= until FROM lease`)
			}
			lead(leads)
		}
	})
	d.exec(t, `CREATE TABLE lease AS SELECT clock_timestamp() + '400ms' AS until`)
	d.exec(t, `UPDATE outbox_cursors SET lease_until = until FROM lease`)
	d.commit(t, "a") // nobody takes over a lease to do nothing
	if next(t, early, "a new leader") {
		t.Error("took over while the lease was running")
	}
	next(t, r.leading, "a new leader")
	b.waitFor(t, 1)
}

func TestFencedLeaderMovesNothingAndStandsBy(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	hold, sending := make(chan struct{}), make(chan struct{}, 10)
	b.onPublish = func(context.Context, []relay.Message) (int, error) { sending <- struct{}{}; <-hold; return 0, nil }
	r := start(t, d.relay, b.Open, nil)
	want := d.commit(t, "a", "b")
	next(t, sending, "a batch")
	d.exec(t, steal)
	close(hold) // it is sent, but too late: somebody else leads
	if err := next(t, r.errors, "the end of the term"); !strings.Contains(err.Error(), "another relay leads") {
		t.Errorf("the term ended with %v", err)
	}
	if last := ask[int64](t, d, `SELECT last_id FROM outbox_cursors WHERE holder = 'thief' AND lease_until > now()`); last != 0 {
		t.Errorf("the fenced leader moved the cursor to %d", last)
	}
	d.exec(t, `UPDATE outbox_cursors SET lease_until = '-infinity'`)
	b.waitFor(t, 4)
	if got := b.ids(); !slices.Equal(got, slices.Concat(want, want)) {
		t.Errorf("got %v, want the batch twice under the same ids, %v", got, want)
	}
}

// TestLeaderRereadsCursorThatWentBack: the pool of a leader reaches a promoted standby that lacks the newest
// transactions. What the leader remembers of them counts no longer; ids that it has read are handed out again.
func TestLeaderRereadsCursorThatWentBack(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	r := start(t, d.relay, b.Open, nil)
	moved := func(beyond int64) {
		t.Helper()
		testenv.Eventually(t, soon, func() error {
			if last := ask[int64](t, d, `SELECT coalesce(max(last_id), 0) FROM outbox_cursors`); last <= beyond {
				return fmt.Errorf("the cursor is at %d", last)
			}
			return nil
		})
	}
	d.commit(t, "a")
	moved(0)
	d.exec(t, `CREATE TABLE before AS SELECT batches, last_id, seen FROM outbox_cursors`)
	lost := d.commit(t, "b")
	moved(ask[int64](t, d, `SELECT last_id FROM before`))
	// The tail is gone: event, aggregate, sequence and cursor are as they were.
	tx := d.begin(t)
	for _, undo := range []string{
		`DELETE FROM outbox_events WHERE aggregate_id = 'b'`, `DELETE FROM aggregates WHERE id = 'b'`,
		`SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), (SELECT last_id FROM before))`,
		`UPDATE outbox_cursors c SET batches = b.batches, last_id = b.last_id, seen = b.seen FROM before b`,
	} {
		if _, err := tx.Exec(t.Context(), undo); err != nil {
			t.Fatal(err)
		}
	}
	again := changeAll(t, tx, "c") // under the id that b's event had
	commit(t, tx)
	d.commit(t, "d") // makes the leader move
	testenv.Eventually(t, soon, func() error {
		if !slices.Contains(b.ids(), again[0]) {
			return fmt.Errorf("the event under the id of %s has not arrived", lost[0])
		}
		return nil
	})
	if err := next(t, r.errors, "the end of the term"); !strings.Contains(err.Error(), "failed over") {
		t.Errorf("the term ended with: %v", err)
	}
}

func TestLeaderThatLosesLeaseStopsPublishing(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	sending, stopped := make(chan struct{}, 10), make(chan error, 10)
	b.onPublish = func(ctx context.Context, _ []relay.Message) (int, error) {
		sending <- struct{}{}
		<-ctx.Done()
		stopped <- ctx.Err()
		return 0, ctx.Err()
	}
	start(t, d.relay, b.Open, func(r *relay.Relay) { r.Lease = 600 * time.Millisecond })
	d.commit(t, "a")
	next(t, sending, "a batch")
	d.exec(t, steal)
	_ = next(t, stopped, "the batch to be given up")
}

func TestLongBatchKeepsLease(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	d, b := newDatabase(t), &broker{}
	hold, sending := make(chan struct{}), make(chan struct{}, 10)
	b.onPublish = func(context.Context, []relay.Message) (int, error) { sending <- struct{}{}; <-hold; return 0, nil }
	short := func(r *relay.Relay) { r.Lease = lease }
	one := start(t, d.relay, b.Open, short)
	next(t, one.leading, "a leader")
	d.commit(t, "a")
	next(t, sending, "a batch")
	two := start(t, d.relay, b.Open, short)
	until := ask[time.Time](t, d, `SELECT lease_until FROM outbox_cursors`)
	testenv.Eventually(t, soon, func() error {
		if !ask[bool](t, d, `SELECT clock_timestamp() > $1::timestamptz + $2::interval`, until, lease) {
			return errors.New("the lease that ran when the batch was begun has not run out long ago")
		}
		return nil
	})
	close(hold)
	b.waitFor(t, 1)
	d.commit(t, "a")
	b.waitFor(t, 2)
	if token := ask[int64](t, d, `SELECT fencing_token FROM outbox_cursors`); token != 1 || len(two.leading) > 0 {
		t.Errorf("fencing token %d, want 1: somebody else led", token)
	}
	if got := len(b.received()); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
}

func TestStopSettlesBatchInHand(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	sending, gone := make(chan struct{}, 10), make(chan error)
	b.onPublish = func(ctx context.Context, _ []relay.Message) (int, error) {
		sending <- struct{}{}
		return 0, errors.Join(<-gone, ctx.Err())
	}
	r := start(t, d.relay, b.Open, nil)
	d.commit(t, "a")
	next(t, sending, "a batch")
	done := make(chan error, 1)
	go func() { done <- r.stop() }()
	select {
	case gone <- nil: // Run's context ends about now, before or after this
	case err := <-done:
		t.Fatalf("Run returned %v with a batch in hand", err)
	}
	if err := next(t, done, "Run"); err != nil {
		t.Fatal(err)
	}
	if !ask[bool](t, d, `SELECT last_id > 0 AND lease_until = '-infinity' FROM outbox_cursors`) {
		t.Error("the cursor was not moved, or the lease not given back")
	}
}

// A publisher that comes when its term is over would stay open for ever.
func TestPublisherOpenedTooLateIsClosed(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	opening := make(chan struct{}, 10)
	open := func(ctx context.Context, relay, cursor string) (relay.Publisher, *relay.Progress, error) {
		opening <- struct{}{}
		<-ctx.Done()
		return b.Open(ctx, relay, cursor)
	}
	r := start(t, d.relay, open, func(r *relay.Relay) { r.Lease = 6 * time.Second })
	next(t, opening, "a publisher")
	d.exec(t, steal)
	_ = next(t, r.errors, "the end of the term")
	testenv.Eventually(t, soon, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.opened != 1 || b.open != 0 {
			return fmt.Errorf("%d publishers of %d are still open", b.open, b.opened)
		}
		return nil
	})
}

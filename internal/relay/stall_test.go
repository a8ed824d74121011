package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// aLease is that of the looks. The relays' own is longer: a busy machine must not end their terms.
const aLease = 100 * time.Millisecond

// turns waits until the looks say what is wanted, and returns the last one's stall.
func turns(t *testing.T, d database, s *relay.Stalls, stalled bool) (found *relay.Stall) {
	t.Helper()
	testenv.Eventually(t, soon, func() (err error) {
		if found, err = s.Look(t.Context(), d.relay); err == nil && (found != nil) != stalled {
			err = fmt.Errorf("stall: %v", found)
		}
		return err
	})
	return found
}

// stays looks for longer than a stall takes, and fails if one is found.
func stays(t *testing.T, d database, s *relay.Stalls, when string) {
	t.Helper()
	for began := time.Now(); time.Since(began) < 8*s.Lease; {
		found, err := s.Look(t.Context(), d.relay)
		if err != nil || found != nil {
			t.Fatalf("%s: %v, %v", when, found, err)
		}
	}
}

// TestBlockedLeaderIsStalled: its heart beats, so it keeps its lease and nobody else leads.
func TestBlockedLeaderIsStalled(t *testing.T) {
	t.Parallel()
	d, b, blocked := newDatabase(t), &broker{}, make(chan struct{})
	unblock := sync.OnceFunc(func() { close(blocked) })
	b.onPublish = func(context.Context, []relay.Message) (int, error) {
		<-blocked // whatever becomes of the context
		return 0, nil
	}
	began := time.Now()
	r := start(t, d.relay, b.Open, func(r *relay.Relay) { r.Holder = "me" })
	t.Cleanup(unblock)
	next(t, r.leading, "a leader")
	s := &relay.Stalls{Relay: "main", Lease: aLease}
	d.commit(t, "a")

	found := turns(t, d, s, true)
	if took := time.Since(began); took < 5*aLease || found.Oldest < 5*aLease || found.Still < 5*aLease {
		t.Errorf("after %s: %+v", took, found)
	}
	if found.Holder != "me" || !found.Leads || found.Blocked != "" {
		t.Errorf("%+v", found)
	}

	unblock()
	turns(t, d, s, false)
	b.waitFor(t, 1)
}

// TestBrokerAwayIsAStall: the relay tries again and again, and gives its lease back each time.
func TestBrokerAwayIsAStall(t *testing.T) {
	t.Parallel()
	d, b, back := newDatabase(t), &broker{}, make(chan struct{})
	start(t, d.relay, func(ctx context.Context, name, cursor string) (relay.Publisher, *relay.Progress, error) {
		select {
		case <-back:
			return b.Open(ctx, name, cursor)
		default:
			return nil, nil, errors.New("connection refused")
		}
	}, nil)
	s := &relay.Stalls{Relay: "main", Lease: aLease}
	d.commit(t, "a")
	turns(t, d, s, true)
	close(back)
	turns(t, d, s, false)
}

// TestLockedCursorIsAStall: the events are on the topic, but the cursor cannot follow. Who holds the lock is named.
func TestLockedCursorIsAStall(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	start(t, d.relay, b.Open, nil)
	d.commit(t, "a")
	b.waitFor(t, 1)
	s := &relay.Stalls{Relay: "main", Lease: aLease}
	turns(t, d, s, false)

	psql := d.begin(t)
	if _, err := psql.Exec(t.Context(), `SET LOCAL application_name = 'somebody''s psql'`); err != nil {
		t.Fatal(err)
	}
	if _, err := psql.Exec(t.Context(), `SELECT FROM outbox_cursors FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	d.commit(t, "b")
	want := fmt.Sprintf("pid %d (%s, somebody's psql)", psql.Conn().PgConn().PID(), ask[string](t, d, `SELECT current_user`))
	testenv.Eventually(t, soon, func() error {
		found, err := s.Look(t.Context(), d.relay)
		if err == nil && (found == nil || !strings.Contains(found.Blocked, want) || !strings.Contains(found.String(), want)) {
			err = fmt.Errorf("%v: want %s named", found, want)
		}
		return err
	})

	if err := psql.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	turns(t, d, s, false)
}

// TestNothingWaitsIsNoStall: not for an hour, not while a transaction stays open, and not when that commits at last.
func TestNothingWaitsIsNoStall(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	r := start(t, d.relay, b.Open, nil)
	d.commit(t, "a")
	b.waitFor(t, 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	s := &relay.Stalls{Relay: "main", Lease: aLease}
	d.exec(t, `UPDATE outbox_cursors SET moved_at = now() - interval '1 hour'`)
	stays(t, d, s, "nothing was written for an hour")

	open := d.begin(t)
	changeAll(t, open, "b")
	stays(t, d, s, "a transaction is open")

	// Its event has the age of the transaction, and has waited for no time. Nobody sends it.
	commit(t, open)
	if found, err := s.Look(t.Context(), d.relay); err != nil || found != nil {
		t.Errorf("it has just committed: %v, %v", found, err)
	}
	if found := turns(t, d, s, true); found.Still < time.Hour || found.Leads {
		t.Errorf("%+v", found)
	}
}

// TestSlowIsNoStall: as long as the cursor moves, nothing is stuck. A parked aggregate waits for a person.
func TestSlowIsNoStall(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	b.onPublish = func(_ context.Context, batch []relay.Message) (int, error) {
		if batch[0].AggregateID == "bad" {
			return 0, &relay.BatchError{Refused: true, Unsent: true, Err: errors.New("too large")}
		}
		<-time.After(2 * aLease) // the broker is slow
		return 0, nil
	}
	d.commit(t, "bad")
	for range 100 {
		d.commit(t, "a") // one batch each, much more than is sent here
	}
	start(t, d.relay, b.Open, func(r *relay.Relay) { r.Batch = 1 })
	s := &relay.Stalls{Relay: "main", Lease: 20 * aLease} // a pause of the machine is no stall either
	b.waitFor(t, 1)
	stays(t, d, s, "it is slow")
	if len(b.received()) == 100 {
		t.Error("it was not slow")
	}
}

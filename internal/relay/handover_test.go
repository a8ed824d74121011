package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Two relays that take the lease from each other while they open a slow broker would fence each other for ever.
func TestSlowOpenKeepsLease(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	hold, opening := make(chan struct{}), make(chan struct{}, 10)
	slow := func(ctx context.Context, relay, cursor string) (relay.Publisher, *relay.Progress, error) {
		opening <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return b.Open(ctx, relay, cursor)
	}
	short := func(r *relay.Relay) { r.Lease = 4 * time.Second } // it is opened within five
	start(t, d.relay, slow, short)
	next(t, opening, "a leader")
	d.commit(t, "a") // somebody else would have something to do
	two := start(t, d.relay, slow, short)
	taken := ask[time.Time](t, d, `SELECT clock_timestamp()`)
	testenv.Eventually(t, soon, func() error {
		if !ask[bool](t, d, `SELECT clock_timestamp() > $1::timestamptz + '4500ms'`, taken) {
			return errors.New("the lease has not run out long ago")
		}
		return nil
	})
	close(hold)
	b.waitFor(t, 1)
	if token := ask[int64](t, d, `SELECT fencing_token FROM outbox_cursors`); token != 1 || len(two.leading) > 0 {
		t.Errorf("fencing token %d, want 1: somebody else led", token)
	}
}

// What a standby waits for an idle leader to notice events is part of the lease, and does not come on top of it.
func TestVanishedLeaderUnderTrafficIsReplaced(t *testing.T) {
	t.Parallel()
	const lease = 12 * time.Second
	d, b := newDatabase(t), &broker{}
	before := start(t, d.relay, b.Open, func(r *relay.Relay) { r.Lease = lease }) // makes the cursor
	next(t, before.leading, "a leader")
	d.commit(t, "a")
	d.movedTo(t, 1)
	if left := ask[time.Duration](t, d, `SELECT lease_until - clock_timestamp() FROM outbox_cursors`); left > lease*9/10 {
		t.Errorf("a lease of %s is taken for %s: a standby could not lead within it", lease, left)
	}
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}
	d.exec(t, `UPDATE outbox_cursors SET holder = 'gone', lease_until = clock_timestamp() + '2s'`)
	d.exec(t, `CREATE TABLE lease AS SELECT lease_until AS until FROM outbox_cursors`)
	d.commit(t, "a")
	late := make(chan time.Duration, 1)
	start(t, d.relay, b.Open, func(r *relay.Relay) {
		r.Lease = lease
		r.OnLeader = func(leads bool) {
			if leads {
				late <- ask[time.Duration](t, d, `SELECT clock_timestamp() - until FROM lease`)
			}
		}
	})
	if late := next(t, late, "a new leader"); late < 0 || late > lease/2 {
		t.Errorf("another one leads %s after the lease ran out", late)
	}
}

// Progress of another epoch tells of another history: the ids in it may belong to other events.
func TestResentDeadLettersAreNotRepeated(t *testing.T) {
	t.Parallel()
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("of this epoch %t", same), func(t *testing.T) {
			t.Parallel()
			d, b, p := newDatabase(t), &broker{}, &picky{}
			es := d.commit(t, "a", "b")
			p.refuse(es[0])
			first := start(t, d.relay, p.open(b), nil)
			testenv.Eventually(t, soon, func() error {
				if got := letters(t, d); len(got) != 1 || len(of(b.received(), "b")) != 1 {
					return fmt.Errorf("dead letters: %+v", got)
				}
				return nil
			})
			d.sentAll(t)
			if err := first.stop(); err != nil {
				t.Fatal(err)
			}
			letter := letters(t, d)[0]
			if err := relay.RetryDeadLetter(t.Context(), d.relay, "main", letter.ID); err != nil {
				t.Fatal(err)
			}
			p.refuse()
			kept := progressOf(t, d) // as if a relay had died between sending it and noting so
			kept.Resent = []int64{letter.ID}
			if !same {
				kept.Epoch = "11111111-1111-4111-8111-111111111111"
			}
			b.kept = &kept
			start(t, d.relay, p.open(b), nil)
			d.commit(t, "b")
			testenv.Eventually(t, soon, func() error {
				if got := letters(t, d); got[0].State != "sent" || len(of(b.received(), "b")) != 2 {
					return fmt.Errorf("dead letters: %+v", got)
				}
				return nil
			})
			if again := len(of(b.received(), "a")) == 1; again == same {
				t.Errorf("sent again: %t", again)
			}
		})
	}
}

package relay_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/relay"
)

// The successor has read which events are parked when the refusal arrives: a letter that is made now would be seen by nobody.
func TestFencedLeaderParksNothing(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	b.onPublish = func(context.Context, []relay.Message) (int, error) {
		d.exec(t, steal)
		return 0, &relay.BatchError{Refused: true, Unsent: true, Err: errors.New("too large")}
	}
	r := start(t, d.relay, b.Open, nil)
	d.commit(t, "a")
	if err := next(t, r.errors, "the end of the term"); !strings.Contains(err.Error(), "another relay leads") {
		t.Errorf("the term ended with %v", err)
	}
	if n := ask[int](t, d, `SELECT count(*) FROM outbox_dead_letters`); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// The broker would take it now, but nobody has decided on it. A term begins with the letters that were released.
func TestRefusedEventWaitsForDecision(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	refused := false
	b.onPublish = func(_ context.Context, batch []relay.Message) (int, error) {
		for i, m := range batch {
			if m.AggregateID == "a" && !refused {
				refused = true
				return 0, &relay.BatchError{Refused: true, Index: i, Unsent: true, Err: errors.New("too large")}
			}
		}
		return 0, nil
	}
	r := start(t, d.relay, b.Open, nil)
	d.commit(t, "a", "b")
	b.waitFor(t, 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	d.commit(t, "a", "c")
	start(t, d.relay, b.Open, nil)
	b.waitFor(t, 2)
	for _, m := range b.received() {
		if m.AggregateID == "a" {
			t.Errorf("version %d of a was sent", *m.AggregateVersion)
		}
	}
	if n := ask[int](t, d, `SELECT count(*) FROM outbox_dead_letters WHERE state = 'parked'`); n != 2 {
		t.Errorf("%d events are parked, want 2", n)
	}
}

package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/outbox"
)

// The successor has read which events are parked when the refusal arrives: a letter that is made now would be seen by nobody.
func TestAFencedLeaderParksNothing(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	b.onPublish = func(context.Context, []outbox.Message) (int, error) {
		d.exec(t, steal)
		return 0, &outbox.RefusedError{Unsent: true, Err: errors.New("too large")}
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

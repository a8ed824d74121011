package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

var (
	errSlow   = &pgconn.PgError{Code: "57014", Message: "canceling statement due to statement timeout"}
	errLocked = &pgconn.PgError{Code: "55P03", Message: "canceling statement due to lock timeout"}
)

// A COMMIT elsewhere that waits for its standby holds the handler's rows for longer than a bad event
// is tried.
func TestTimeoutsGetTwiceAsManyTries(t *testing.T) {
	t.Parallel()
	fault := errors.New("it is wrong")
	for name, c := range map[string]struct {
		errs  []error // of one call after the other; the last one stays
		tries int     // zero: it takes effect
	}{
		"always slow":            {[]error{errSlow}, 6},
		"always wrong":           {[]error{fault}, 3},
		"slow five times":        {[]error{errSlow, errSlow, errSlow, errSlow, errSlow, nil}, 0},
		"slow, and wrong twice":  {[]error{errSlow, errSlow, fault, errSlow, fault, nil}, 0},
		"slow, and always wrong": {[]error{errSlow, errSlow, fault}, 5},
		"locked":                 {[]error{errLocked}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			consumer := d.consumer(t)
			calls := 0
			consumer.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
				err := c.errs[min(calls, len(c.errs)-1)]
				calls++
				if err != nil {
					return err
				}
				return d.handle(ctx, tx, events)
			}
			d.produce(t, d.numbered(0, "a", 1))
			d.start(t, consumer)
			if c.tries == 0 {
				d.wantApplied(t, map[string][]int64{"a": {1}})
				d.letters(t, 0)
			} else if l := d.letters(t, 1)[0]; l.Tries != c.tries {
				t.Errorf("parked after %d tries, want %d", l.Tries, c.tries)
			}
		})
	}
}

// After an operator's decision a lock that is held for a moment must not call for another decision.
// Meanwhile others are processed.
func TestReleasedLetterOutlivesTimeouts(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	c := d.consumer(t)
	c.Tries, c.TryFor = 4, 200*time.Millisecond
	var mu sync.Mutex
	beside := false
	c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range events {
			switch key := string(e.Key); {
			case !d.cured.Load():
			case key == "never", key == "locked" && !beside:
				return errSlow
			case key == "beside":
				beside = true
			}
		}
		return d.handle(ctx, tx, events)
	}
	for _, key := range []string{"locked", "never", "beside"} {
		d.produce(t, d.numbered(0, key, 1, poisoned...))
	}
	d.start(t, c)
	letters := d.letters(t, 3)
	d.cured.Store(true)
	for _, l := range letters {
		if err := retry(t.Context(), d.pool, l.ID); err != nil {
			t.Fatal(err)
		}
	}

	d.wantApplied(t, map[string][]int64{"locked": {1}, "beside": {1}})
	testenv.Eventually(t, waitLimit, func() error {
		never, err := inbox.FindDeadLetter(t.Context(), d.pool, "test", letters[1].ID)
		if err == nil && (never.State != "parked" || !strings.Contains(never.Reason, "57014")) {
			err = fmt.Errorf("not parked again: %+v", never)
		}
		return err
	})
	l, err := inbox.FindDeadLetter(t.Context(), d.pool, "test", letters[0].ID)
	if err != nil || l.Tries != c.Tries || l.State != "applied" {
		t.Errorf("%+v, %v", l, err)
	}
	if n := strings.Count(d.logged(), "dead letter failed again"); n != 1 {
		t.Errorf("%d letters failed again, want 1", n)
	}
}

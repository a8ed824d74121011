package inbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// numbers returns from, from+1 … to.
func numbers(from, to int64) (all []int64) {
	for n := from; n <= to; n++ {
		all = append(all, n)
	}
	return all
}

// parkMany makes a dead letter of number 1 of an aggregate, and letters of those up to n.
func (d *desk) parkMany(t *testing.T, n int) (first inbox.DeadLetter) {
	t.Helper()
	records := []*kgo.Record{d.numbered(0, "a", 1, poisoned...)}
	for i := 2; i <= n; i++ {
		records = append(records, d.numbered(0, "a", i))
	}
	d.produce(t, records...)
	d.atLeast(t, inbox.Parked, n)
	return d.letters(t, 1)[0]
}

func TestReleasedLettersShareTransactions(t *testing.T) {
	t.Parallel()
	const letters = 230
	d := newDesk(t, testenv.Brokers(t), 1)
	c := d.consumer(t)
	var mu sync.Mutex
	var sizes []int
	c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
		if err := d.handle(ctx, tx, events); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, len(events))
		return nil
	}
	d.start(t, c)
	l := d.parkMany(t, letters)
	d.cured.Store(true)
	if err := retry(t.Context(), d.pool, l.ID); err != nil {
		t.Fatal(err)
	}

	d.wantApplied(t, map[string][]int64{"a": numbers(1, letters)})
	d.atLeast(t, inbox.Processed, letters)
	mu.Lock()
	defer mu.Unlock()
	if want := []int{100, 100, 30}; !slices.Equal(sizes, want) {
		t.Errorf("transactions of %v letters, want %v", sizes, want)
	}
	if n := d.gapsSeen(); n > 0 {
		t.Errorf("%d kinds of gaps", n)
	}
	var wrong int
	err := d.owner.QueryRow(t.Context(), `SELECT count(*) FROM inbox_dead_letters WHERE state <> 'applied' OR resolved_at IS NULL`).Scan(&wrong)
	if err != nil || wrong > 0 {
		t.Errorf("%d letters are not applied, %v", wrong, err)
	}
}

// One letter of a hundred fails: those before it take effect, those behind it wait for another decision.
func TestReleasedLettersAroundAFault(t *testing.T) {
	t.Parallel()
	const letters, broken = 120, 50
	for name, err := range map[string]error{"fault": errors.New("it is broken"), "timeout": errSlow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			c := d.consumer(t)
			var healed atomic.Bool
			c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
				for _, e := range events {
					if e.Sequence == broken && !healed.Load() {
						return err
					}
				}
				return d.handle(ctx, tx, events)
			}
			d.start(t, c)
			l := d.parkMany(t, letters)
			d.cured.Store(true)
			if err := retry(t.Context(), d.pool, l.ID); err != nil {
				t.Fatal(err)
			}
			d.wantApplied(t, map[string][]int64{"a": numbers(1, broken-1)})
			if l = d.letters(t, 1)[0]; l.Sequence != broken || l.Waiting != letters-broken+1 || !strings.Contains(l.Reason, err.Error()) {
				t.Errorf("letter %+v", l)
			}

			healed.Store(true)
			if err := retry(t.Context(), d.pool, l.ID); err != nil {
				t.Fatal(err)
			}
			d.wantApplied(t, map[string][]int64{"a": numbers(1, letters)})
		})
	}
}

// The search for letters pauses for longer the longer it takes. To wait for a lock is no load.
func TestReleaseSoonAfterALockWait(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	d.start(t, d.consumer(t))
	l := d.parkMany(t, 1)

	tx, err := d.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK TABLE inbox_dead_letters`); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, waitLimit, func() error {
		var waited bool
		err := d.owner.QueryRow(t.Context(), `
			SELECT bool_or(now() - query_start > '3 s') FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%WITH RECURSIVE%'`).Scan(&waited)
		if err == nil && !waited {
			err = errors.New("it has not waited yet")
		}
		return err
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	d.cured.Store(true)
	start := time.Now()
	if err := retry(t.Context(), d.pool, l.ID); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"a": {1}})
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("released after %s", took)
	}
}

// A record that is no event among the letters of a batch, and one that an operator vouches for.
func TestReleasedLettersThatComeAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	d.start(t, d.consumer(t))
	d.produce(t, d.numbered(0, "a", 1, poisoned...), d.numbered(0, "a", 2), d.event(0, uuid.New(), "a", "ce_sequence", "-3"), d.numbered(0, "a", 4))
	d.atLeast(t, inbox.Parked, 4)
	letters := d.letters(t, 2)
	d.cured.Store(true)

	for _, l := range letters {
		if err := retry(t.Context(), d.pool, l.ID); err != nil {
			t.Fatal(err)
		}
	}
	d.wantApplied(t, map[string][]int64{"a": {1, 2}})
	d.produce(t, d.numbered(0, "a", 5, "ce_time", ago(-3).Format(time.RFC3339Nano)), d.numbered(0, "a", 6))
	d.atLeast(t, inbox.Parked, 6)
	testenv.Eventually(t, waitLimit, func() error { // when it has failed again
		return inbox.SkipDeadLetter(t.Context(), d.pool, "test", letters[1].ID, "no event")
	})
	// The one of a day to come was parked behind the others, so nobody has vouched for it yet.
	d.wantApplied(t, map[string][]int64{"a": {1, 2, 4}})
	if l := d.letters(t, 1)[0]; l.Sequence != 5 || !strings.Contains(l.Reason, inbox.ErrForgotten.Error()) {
		t.Errorf("letter %+v", l)
	} else if err := retry(t.Context(), d.pool, l.ID); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"a": {1, 2, 4, 5, 6}})
	d.letters(t, 0)
}

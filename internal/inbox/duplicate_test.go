package inbox_test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// Each delivery is a batch of its own.
func TestADuplicateDeliveredAloneHasNoEffect(t *testing.T) {
	t.Parallel()
	b, id := newBench(t, testenv.Brokers(t), 1), uuid.New()
	b.start(t, b.consumer(t))
	for n := range 3 {
		b.produce(t, b.event(0, id, "a"))
		testenv.Eventually(t, waitLimit, func() error {
			return want(nil, n+1, b.outcome(inbox.Processed)+b.outcome(inbox.Duplicate))
		})
	}
	b.effects(t, 1)
	if n := b.outcome(inbox.Duplicate); n != 2 {
		t.Errorf("%d duplicates, want 2", n)
	}
}

func TestSharedEventsAreNotedInOneOrder(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "consumer")
	ids := []uuid.UUID{uuid.New(), uuid.New()}
	slices.SortFunc(ids, func(x, y uuid.UUID) int { return bytes.Compare(x[:], y[:]) })
	low, high := ids[0], ids[1]

	note := func(ctx context.Context, events ...uuid.UUID) (first []bool, err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		defer tx.Rollback(context.WithoutCancel(ctx))
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '2s'`); err != nil {
			return nil, err
		}
		return inbox.OnceEach(ctx, tx, "test", events)
	}

	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := inbox.Once(t.Context(), holder, "test", low); err != nil {
		t.Fatal(err)
	}
	waiter := make(chan error, 1)
	go func() {
		_, err := note(t.Context(), high, low)
		waiter <- err
	}()
	testenv.Eventually(t, waitLimit, func() error {
		var waiting int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		return want(err, 1, waiting)
	})

	// It waits for the lower one, and so must not have noted the higher one yet.
	first, err := note(t.Context(), high)
	if diff := cmp.Diff([]bool{true}, first); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waiter; err != nil {
		t.Error(err)
	}
}

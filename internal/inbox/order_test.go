package inbox_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestSharedEventsAreNotedInOneOrder(t *testing.T) {
	t.Parallel()
	pool := openInbox(t)
	ids := []uuid.UUID{uuid.New(), uuid.New()}
	slices.SortFunc(ids, func(x, y uuid.UUID) int { return bytes.Compare(x[:], y[:]) })
	low, high, today := ids[0], ids[1], time.Now()

	if _, err := pool.Exec(t.Context(), `SELECT inbox_events_make_partitions($1::date[])`, []time.Time{today}); err != nil {
		t.Fatal(err)
	}

	note := func(ctx context.Context, events ...uuid.UUID) (first []bool, err error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		defer tx.Rollback(context.WithoutCancel(ctx))
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '20s'`); err != nil {
			return nil, err
		}
		return inbox.OnceEach(ctx, tx, "test", events, slices.Repeat([]time.Time{today}, len(events)))
	}

	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := inbox.Once(t.Context(), holder, "test", low, today); err != nil {
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

package inbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// openInbox returns a consumer's pool on an inbox with partitions for yesterday, today and tomorrow.
func openInbox(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, now := testenv.Database(t).Pool(t, "consumer"), time.Now()
	if err := inbox.MakeDays(t.Context(), pool, now.AddDate(0, 0, -1), now, now.AddDate(0, 0, 1)); err != nil {
		t.Fatal(err)
	}
	return pool
}

func TestOnceForEachConsumer(t *testing.T) {
	t.Parallel()
	pool, id := openInbox(t), uuid.New()
	once := func(consumer string) (first bool) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			first, err = inbox.Once(t.Context(), tx, consumer, id, time.Now())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	got := []bool{once("a"), once("a"), once("b"), once("a")}
	if diff := cmp.Diff([]bool{true, false, true, false}, got); diff != "" {
		t.Error(diff)
	}
}

func TestOnceEachWithTwins(t *testing.T) {
	t.Parallel()
	pool := openInbox(t)
	a, b, c := uuid.New(), uuid.New(), uuid.New()
	for _, step := range []struct {
		events []uuid.UUID
		want   []bool
	}{
		{[]uuid.UUID{a, b, a}, []bool{true, true, false}},
		{[]uuid.UUID{c, b, c}, []bool{true, false, false}},
		{nil, []bool{}},
	} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			got, err := inbox.OnceEach(t.Context(), tx, "test", step.events, slices.Repeat([]time.Time{time.Now()}, len(step.events)))
			if diff := cmp.Diff(step.want, got); diff != "" {
				t.Error(diff)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A zombie and the new owner of its partition: the second waits for the first, whose fate decides.
func TestOnceWaitsForTheOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(pgx.Tx) error
		want bool
	}{
		"it commits":    {func(tx pgx.Tx) error { return tx.Commit(t.Context()) }, false},
		"it rolls back": {func(tx pgx.Tx) error { return tx.Rollback(t.Context()) }, true},
		"it dies":       {func(tx pgx.Tx) error { return tx.Conn().Close(t.Context()) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, id := openInbox(t), uuid.New()
			zombie, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer zombie.Rollback(t.Context())
			if first, err := inbox.Once(t.Context(), zombie, "test", id, time.Now()); err != nil || !first {
				t.Fatal(first, err)
			}
			second := make(chan bool, 1)
			go func() {
				var first bool
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
					first, err = inbox.Once(t.Context(), tx, "test", id, time.Now())
					return err
				})
				if err != nil {
					t.Error(err)
				}
				second <- first
			}()
			testenv.Eventually(t, waitLimit, func() error {
				var waiting int
				err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
				return want(err, 1, waiting)
			})
			if err := c.end(zombie); err != nil {
				t.Fatal(err)
			}
			if got := <-second; got != c.want {
				t.Errorf("second is first: %v, want %v", got, c.want)
			}
		})
	}
}

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// once runs inbox.Once in a transaction of its own.
func once(ctx context.Context, db *pgxpool.Pool, id uuid.UUID, at time.Time) (first bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		first, err = inbox.Once(ctx, tx, "test", id, at)
		return err
	})
	return first, err
}

// drop drops what is older than so many days. Nil: it keeps everything.
func drop(ctx context.Context, db *pgxpool.Pool, consumer string, keepDays any) (dropped int, err error) {
	err = db.QueryRow(ctx, `SELECT inbox_events_drop_partitions($1, $2)`, consumer, keepDays).Scan(&dropped)
	return dropped, err
}

func mustDrop(t *testing.T, db *pgxpool.Pool, consumer string, keepDays any, want int) {
	t.Helper()
	if dropped, err := drop(t.Context(), db, consumer, keepDays); err != nil || dropped != want {
		t.Errorf("%d dropped, want %d, %v", dropped, want, err)
	}
}

func ago(days int) time.Time { return time.Now().UTC().AddDate(0, 0, -days) }

func TestRepeatIsKnownByItsOwnDay(t *testing.T) {
	t.Parallel()
	pool, id := openInbox(t), uuid.New()
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	at := midnight.Add(-time.Millisecond)
	east := at.In(time.FixedZone("", 2*3600)) // the same time, on the next day's calendar
	west := at.In(time.FixedZone("", -2*3600))
	for i, at := range []time.Time{at, at, east, west} {
		if first, err := once(t.Context(), pool, id, at); err != nil || first != (i == 0) {
			t.Errorf("delivery %d: first is %v, %v", i, first, err)
		}
	}
}

func TestMissingDayIsMade(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	old := d.numbered(0, "a", 1, "ce_time", ago(3).Format(time.RFC3339Nano))
	again := *old
	d.start(t, d.consumer(t))
	d.produce(t, old, d.numbered(0, "b", 1), &again)
	d.wantApplied(t, map[string][]int64{"a": {1}, "b": {1}})
	d.atLeast(t, inbox.Duplicate, 1)
	if n := d.outcome(inbox.Failed); n != 0 {
		t.Errorf("%d failed", n)
	}
}

func TestForgottenEventsAreParked(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]time.Time{"before the horizon": ago(5), "in the future": ago(-3)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			mustDrop(t, d.pool, "test", 2, 0)
			r := d.numbered(0, "a", 1, "ce_time", at.Format(time.RFC3339Nano))
			again := *r
			c := d.consumer(t)
			c.Retention = 48 * time.Hour
			d.start(t, c)
			d.produce(t, d.numbered(0, "before", 1), r, d.numbered(0, "beside", 1))
			d.wantApplied(t, map[string][]int64{"before": {1}, "beside": {1}})
			l := d.letters(t, 1)[0]
			if l.Reason != inbox.ErrForgotten.Error()+": "+at.Format(time.DateOnly) {
				t.Errorf("reason %q", l.Reason)
			}

			// An operator says that it has not taken effect. It does now, and once.
			if err := retry(t.Context(), d.pool, l.ID); err != nil {
				t.Fatal(err)
			}
			want := map[string][]int64{"before": {1}, "beside": {1}, "a": {1}}
			d.wantApplied(t, want)
			d.letters(t, 0) // it is decided, so nothing applies it again
			d.produce(t, &again)
			d.atLeast(t, inbox.Duplicate, 1)
			d.wantApplied(t, want)
		})
	}
}

func TestDroppedDayTakesNothingMore(t *testing.T) {
	t.Parallel()
	pool, id, at := testenv.Database(t).Pool(t, "consumer"), uuid.New(), ago(5)
	if err := inbox.MakeDays(t.Context(), pool, at, time.Now()); err != nil {
		t.Fatal(err)
	}
	under, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer under.Rollback(context.WithoutCancel(t.Context()))
	if first, err := inbox.Once(t.Context(), under, "test", id, at); err != nil || !first {
		t.Fatal(first, err)
	}

	// An insert that is under way is not cut off, and the drop does not hold up the others for long.
	var pg *pgconn.PgError
	if _, err := drop(t.Context(), pool, "test", 4); !errors.As(err, &pg) || pg.Code != "55P03" {
		t.Fatalf("dropped under an insert: %v", err)
	}
	if err := under.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustDrop(t, pool, "test", 4, 1)

	if first, err := once(t.Context(), pool, id, at); !errors.Is(err, inbox.ErrNoDay) {
		t.Errorf("first is %v, %v", first, err)
	}
	mustDrop(t, pool, "test", 30, 0) // whatever is configured now
	if err := inbox.MakeDays(t.Context(), pool, at, time.Now()); !errors.Is(err, inbox.ErrForgotten) {
		t.Errorf("made again: %v", err)
	}
}

// Many deliver the same old events while their days are dropped. No insert may find an empty day.
func TestNoSecondEffectWhileDaysAreDropped(t *testing.T) {
	t.Parallel()
	const days, workers, events = 8, 4, 40
	pool := testenv.Database(t).Pool(t, "consumer")
	ids := make([]uuid.UUID, events)
	for i := range ids {
		ids[i] = uuid.New()
	}
	var mu sync.Mutex
	firsts, forgotten := map[uuid.UUID]int{}, 0
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range 5 {
				for i, id := range ids {
					at := ago(1 + i%days)
					first, err := once(t.Context(), pool, id, at)
					for errors.Is(err, inbox.ErrNoDay) {
						if err = inbox.MakeDays(t.Context(), pool, at); err == nil {
							first, err = once(t.Context(), pool, id, at)
						}
					}
					mu.Lock()
					if err == nil && first {
						firsts[id]++
					}
					if errors.Is(err, inbox.ErrForgotten) {
						forgotten++
					} else if err != nil {
						t.Error(err)
					}
					mu.Unlock()
				}
			}
		})
	}
	for keep := days; keep > 0; { // meanwhile
		if _, err := drop(t.Context(), pool, "test", keep); err == nil {
			keep--
		}
	}
	all.Wait()
	for id, n := range firsts {
		if n != 1 {
			t.Errorf("%s was first %d times", id, n)
		}
	}
	if forgotten == 0 {
		t.Error("nothing was dropped in time")
	}
}

func TestDaysThatAreNeededStay(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	d.produce(t, d.numbered(0, "a", 1, append(poisoned, "ce_time", ago(5).Format(time.RFC3339Nano))...))
	stop := d.start(t, d.consumer(t))
	l := d.letters(t, 1)[0]
	stop()
	if err := inbox.MakeDays(t.Context(), d.pool, ago(6), ago(5), ago(4)); err != nil {
		t.Fatal(err)
	}

	mustDrop(t, d.pool, "another", nil, 0) // needs everything
	mustDrop(t, d.pool, "test", 1, 0)
	mustDrop(t, d.pool, "another", 30, 0)
	mustDrop(t, d.pool, "another", 1, 1) // not the day of the letter, and none behind it
	if err := inbox.SkipDeadLetter(t.Context(), d.pool, "test", l.ID, "gone"); err != nil {
		t.Fatal(err)
	}
	mustDrop(t, d.pool, "test", 1, 2)
}

// What docs/operating.md says of a consumer that is gone.
func TestGoneConsumersLettersHoldTheHorizon(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	late := append(poisoned, "ce_time", ago(5).Format(time.RFC3339Nano))
	d.produce(t, d.numbered(0, "a", 1, late...), d.numbered(0, "a", 2, "ce_time", late[3]))
	stop := d.start(t, d.consumer(t))
	d.letters(t, 1)
	d.atLeast(t, inbox.Parked, 2)
	stop()
	if err := inbox.MakeDays(t.Context(), d.pool, ago(5)); err != nil {
		t.Fatal(err)
	}

	for _, step := range []struct {
		sql  string
		want int
	}{
		{`DELETE FROM inbox_consumers WHERE consumer = 'test'`, 0},
		{`UPDATE inbox_dead_letters SET state = 'skipped', note = 'the consumer is gone', resolved_at = now()
		  WHERE consumer = 'test' AND state IN ('parked', 'retry')`, 1},
	} {
		if _, err := d.owner.Exec(t.Context(), step.sql); err != nil {
			t.Fatal(err)
		}
		mustDrop(t, d.pool, "another", 1, step.want)
	}
}

func TestTrimmingNeedsRetention(t *testing.T) {
	t.Parallel()
	day := func(n int) *string { return kadm.StringPtr(fmt.Sprint(n * 24 * 3600 * 1000)) }
	for name, c := range map[string]struct {
		retention, segment, policy *string
		covered                    bool
	}{
		"shorter":          {day(2), day(1), nil, true},
		"as long":          {day(3), day(2), nil, false}, // no margin
		"its last segment": {day(2), day(7), nil, false},
		"unlimited":        {kadm.StringPtr("-1"), day(1), nil, false},
		"compacted":        {day(2), day(1), kadm.StringPtr("compact"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 0)
			configs := map[string]*string{"retention.ms": c.retention, "segment.ms": c.segment}
			if c.policy != nil {
				configs["cleanup.policy"] = c.policy
			}
			if _, err := kadm.NewClient(d.client).CreateTopic(t.Context(), 1, 1, configs, d.topic); err != nil {
				t.Fatal(err)
			}
			if err := inbox.MakeDays(t.Context(), d.pool, ago(9)); err != nil {
				t.Fatal(err)
			}
			consumer := d.consumer(t)
			consumer.Retention = 5 * 24 * time.Hour
			stop := d.start(t, consumer)
			testenv.Eventually(t, waitLimit, func() error {
				d.mu.Lock()
				defer d.mu.Unlock()
				if d.trimmed == 0 || d.short != nil && strings.Contains(d.short.Error(), "UNKNOWN_TOPIC") {
					return fmt.Errorf("not known yet: %w", d.short) // a broker may not know a new topic at once
				}
				return nil
			})
			kept := 1
			if c.covered {
				kept = 0
			}
			testenv.Eventually(t, waitLimit, func() error { // what it noted is written when it has dropped
				var noted, days int
				err := d.owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM inbox_consumers),
					(SELECT count(*) FROM pg_inherits WHERE inhparent = 'inbox_events'::regclass AND inhrelid::regclass::text = 'inbox_events_' || $1)`,
					ago(9).Format("20060102")).Scan(&noted, &days)
				if err == nil && (noted != 1 || days != kept) {
					err = fmt.Errorf("%d noted, %d days", noted, days)
				}
				return err
			})
			stop()
			if short := d.short; (short == nil) != c.covered {
				t.Errorf("covered: %v, want %v", short, c.covered)
			}
		})
	}
}

// At midnight: the day of an event has begun for the new owner of its partition, but not for the
// previous one, which is about to park it.
func TestForgottenEventAtMidnight(t *testing.T) {
	t.Parallel()
	for name, letters := range map[string]int{
		"applied before it is parked": 0,
		"applied while it is parked":  1,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			id, at := uuid.New(), ago(-3)
			day := at.Truncate(24 * time.Hour)
			newOwner := sync.OnceFunc(func() {
				err := pgx.BeginFunc(t.Context(), d.owner, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), fmt.Sprintf(`
						CREATE TABLE inbox_events_%s PARTITION OF inbox_events
						FOR VALUES FROM ('%s') TO ('%s')`, day.Format("20060102"),
						day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
					if err != nil {
						return err
					}
					if _, err := inbox.Once(t.Context(), tx, "test", id, at); err != nil {
						return err
					}
					_, err = tx.Exec(t.Context(), `
						INSERT INTO applied (event_id, key, sequence) VALUES ($1, 'a', 1)`, id)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})

			c := d.consumer(t)
			c.Trace = func(ctx context.Context, _ inbox.Event) (context.Context, func(error)) {
				return ctx, func(err error) {
					if letters == 0 && errors.Is(err, inbox.ErrForgotten) {
						newOwner()
					}
				}
			}
			d.produce(t, d.event(0, id, "a", "ce_time", at.Format(time.RFC3339Nano)))
			d.start(t, c)
			d.atLeast(t, inbox.Parked, 1)
			newOwner()
			for _, l := range d.letters(t, letters) {
				if err := retry(t.Context(), d.pool, l.ID); err != nil {
					t.Fatal(err)
				}
			}
			d.letters(t, 0)
			d.wantApplied(t, map[string][]int64{"a": {1}})
		})
	}
}

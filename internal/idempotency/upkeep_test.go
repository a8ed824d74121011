package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestKeepPartitions(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner, relay := db.Pool(t, ""), db.Pool(t, "relay")
	dropDay(t, owner, 6)
	dropDay(t, owner, 7)
	for _, age := range []int{-30, -5, -4, -3, -1} {
		makeDay(t, owner, age)
	}
	want := idempotency.Partitions{Made: 2} // no program has called ExtendRetention
	if diff := cmp.Diff(want, keep(t, relay)); diff != "" {
		t.Error(diff)
	}
	extend(t, owner, 72*time.Hour)
	want = idempotency.Partitions{Dropped: 2}
	if diff := cmp.Diff(want, keep(t, relay)); diff != "" {
		t.Error(diff)
	}
	// A transaction that began before midnight may still look for the fourth day.
	if got := strings.Join(days(t, owner), " "); got != "-4 -3 -1 0 1 2 3 4 5 6 7" {
		t.Errorf("the days with a partition are %s", got)
	}
	want = idempotency.Partitions{}
	if diff := cmp.Diff(want, keep(t, relay)); diff != "" {
		t.Errorf("the second call did something: %s", diff)
	}
	api := db.Pool(t, "api_write")
	dropDay(t, owner, 7)
	if p, err := idempotency.KeepPartitions(t.Context(), api); p.Made != 1 || code(err) != "42501" {
		t.Errorf("api_write may make partitions and drop none: %+v, %v", p, err)
	}
}

func TestConcurrentMakersMakeDayOnce(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "")
	for day := 1; day <= 7; day++ {
		dropDay(t, pool, day)
	}
	var made atomic.Int64
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			n, err := idempotency.MakePartitions(context.Background(), pool)
			if err != nil {
				t.Error(err)
			}
			made.Add(int64(n))
		})
	}
	callers.Wait()
	if made.Load() != 7 || len(days(t, pool)) != 8 {
		t.Errorf("made %d partitions, want 7; there are %v", made.Load(), days(t, pool))
	}
}

func TestKeepPartitionsGivesUpOnLock(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	extend(t, d.owner, retention)
	dropDay(t, d.owner, 7)
	makeDay(t, d.owner, -9)
	holder := begin(t, d.write)
	claim(t, holder, newRequest())
	if p, err := idempotency.KeepPartitions(t.Context(), d.owner); p.Made != 1 || code(err) != "55P03" {
		t.Errorf("%+v: want one made, which waits for nothing, and lock_not_available, got %v", p, err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := keep(t, d.owner); p.Dropped != 1 {
		t.Errorf("after the holder ended: %+v", p)
	}
}

// Every midnight one day is due and one day is old, and traffic does not stop for it.
func TestKeepPartitionsUnderTraffic(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	extend(t, d.owner, retention)
	dropDay(t, d.owner, 7)
	makeDay(t, d.owner, -9)
	ctx, cancel := context.WithCancel(t.Context())
	var traffic sync.WaitGroup
	defer traffic.Wait()
	defer cancel()
	for range 8 {
		traffic.Go(func() {
			for ctx.Err() == nil {
				r := newRequest()
				if _, err := idempotency.Run(ctx, d.write, r, retention, work(r)); err != nil && ctx.Err() == nil {
					t.Errorf("a request failed: %v", err)
					return
				}
			}
		})
	}
	calls, did := 0, idempotency.Partitions{}
	testenv.Eventually(t, 20*time.Second, func() error {
		calls++
		p, err := idempotency.KeepPartitions(ctx, d.owner)
		did.Made, did.Dropped = did.Made+p.Made, did.Dropped+p.Dropped
		return err
	})
	if did.Made != 1 || did.Dropped != 1 {
		t.Errorf("it did %+v", did)
	}
	t.Logf("calls until it succeeded: %d", calls)
}

func keep(t testing.TB, pool *pgxpool.Pool) idempotency.Partitions {
	t.Helper()
	p, err := idempotency.KeepPartitions(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// makeDay makes the partition of a day, counted from today.
func makeDay(t testing.TB, pool *pgxpool.Pool, day int) {
	t.Helper()
	mustExec(t, pool, fmt.Sprintf(`DO $$ DECLARE d date := (now() AT TIME ZONE 'utc')::date + %d; BEGIN
		EXECUTE format('CREATE TABLE %%I PARTITION OF idempotency_keys FOR VALUES FROM (%%L) TO (%%L)', 'idempotency_keys_' || to_char(d, 'YYYYMMDD'), d, d + 1);
	END $$`, day))
}

func dropDay(t testing.TB, pool *pgxpool.Pool, day int) {
	t.Helper()
	mustExec(t, pool, fmt.Sprintf(`DO $$ BEGIN
		EXECUTE format('DROP TABLE %%I', 'idempotency_keys_' || to_char((now() AT TIME ZONE 'utc')::date + %d, 'YYYYMMDD'));
	END $$`, day))
}

// days lists the days that have a partition, counted from today.
func days(t testing.TB, pool *pgxpool.Pool) (list []string) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT array_agg(n::text ORDER BY n) FROM (
		SELECT to_date(right(inhrelid::regclass::text, 8), 'YYYYMMDD') - (now() AT TIME ZONE 'utc')::date
		FROM pg_inherits WHERE inhparent = 'idempotency_keys'::regclass) d(n)`).Scan(&list)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (d database) count(t testing.TB, table string) (n int) {
	t.Helper()
	if err := d.owner.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func extend(t testing.TB, pool *pgxpool.Pool, retention time.Duration) {
	t.Helper()
	if _, err := idempotency.ExtendRetention(t.Context(), pool, retention); err != nil {
		t.Fatal(err)
	}
}

func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

const week = 7 * 24 * time.Hour

// old makes a partition of long ago; insertOld writes an event into it.
const (
	old       = `CREATE TABLE outbox_events_20200101 PARTITION OF outbox_events FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')`
	insertOld = `INSERT INTO outbox_events (created_at, aggregate_type, aggregate_id, event_type, payload)
		VALUES ('2020-01-01 12:00Z', 'things', 'old', 'thing.changed', '{}')`
)

func keep(t testing.TB, d database) outbox.Partitions {
	t.Helper()
	p, err := outbox.KeepPartitions(t.Context(), d.relay, week)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// publish runs a relay until n messages were published and the cursor is behind them.
func publish(t testing.TB, d database, b *broker, n int) {
	t.Helper()
	r := start(t, d.relay, b.Open, nil)
	b.waitFor(t, n)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestDropPartitionThatEveryRelayPassed(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	d.exec(t, old)
	d.exec(t, insertOld)
	if p := keep(t, d); p.Dropped != 0 {
		t.Error("dropped although nothing was ever sent")
	}
	publish(t, d, b, 1)
	d.exec(t, `INSERT INTO outbox_cursors (relay, seen, system_identifier, database_oid)
		SELECT 'other', seen, system_identifier, database_oid FROM outbox_cursors`)
	if p := keep(t, d); p.Dropped != 0 {
		t.Error("dropped although another relay has not sent it")
	}
	d.exec(t, `DELETE FROM outbox_cursors WHERE relay = 'other'`)
	d.exec(t, insertOld)
	if p := keep(t, d); p.Dropped != 0 {
		t.Error("dropped with a row that was not sent")
	}
	publish(t, d, b, 2)
	want := outbox.Partitions{Dropped: 1}
	if p := keep(t, d); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	if p := keep(t, d); p.Dropped != 0 {
		t.Error("dropped a partition that is not old")
	}
}

func TestStragglerKeepsItsPartition(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	d.exec(t, old)
	open := d.begin(t)
	if _, err := open.Exec(t.Context(), insertOld); err != nil {
		t.Fatal(err)
	}
	d.commit(t, "a")
	publish(t, d, b, 1)
	commit(t, open) // below the cursor, and not sent
	if p := keep(t, d); p.Dropped != 0 {
		t.Fatal("dropped with a straggler in it")
	}
	publish(t, d, b, 2)
	if p := keep(t, d); p.Dropped != 1 {
		t.Error("not dropped although the straggler was sent")
	}
}

func TestUpkeepGivesUpBehindWriter(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	d.exec(t, old)
	d.commit(t, "a")
	publish(t, d, b, 1)
	open := d.begin(t)
	changeAll(t, open, "b")
	begun := time.Now()
	_, err := outbox.KeepPartitions(t.Context(), d.relay, week)
	took := time.Since(begun)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "55P03" {
		t.Fatalf("got %v, want SQLSTATE 55P03", err)
	}
	if took < 50*time.Millisecond || took > soon {
		t.Errorf("gave up after %s", took)
	}
	commit(t, open)
	if p := keep(t, d); p.Dropped != 1 {
		t.Error("not dropped when the writer had gone")
	}
	d.commit(t, "b")
	publish(t, d, b, 3)
}

// What is checked before the lock may no longer be true when the lock is there: a transaction of that day may have committed meanwhile.
func TestDropPartitionsChecksUnderLock(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	d.exec(t, old)
	d.commit(t, "a")
	publish(t, d, b, 1)
	d.exec(t, `ALTER FUNCTION outbox_events_drop_partitions SET lock_timeout = '20s'`)
	late := d.begin(t)
	if _, err := late.Exec(t.Context(), insertOld); err != nil {
		t.Fatal(err)
	}

	type result struct {
		outbox.Partitions
		err error
	}
	done := make(chan result, 1)
	go func() {
		p, err := outbox.KeepPartitions(context.Background(), d.owner, week)
		done <- result{p, err}
	}()
	testenv.Eventually(t, soon, func() error {
		if n := ask[int](t, d, `SELECT count(*) FROM pg_locks WHERE relation = 'outbox_events'::regclass AND NOT granted`); n == 0 {
			return errors.New("upkeep does not wait for the late transaction")
		}
		return nil
	})
	commit(t, late)
	if r := <-done; r.err != nil || r.Dropped != 0 {
		t.Errorf("%+v: dropped with a row that was not sent", r)
	}
	publish(t, d, b, 2)
}

func TestBacklogCountsUnsentEvents(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	measure := func() relay.Backlog {
		t.Helper()
		backlog, err := relay.MeasureBacklog(t.Context(), d.relay, "main")
		if err != nil {
			t.Fatal(err)
		}
		return backlog
	}
	if got := measure(); got != (relay.Backlog{}) {
		t.Errorf("%+v of an empty outbox", got)
	}
	d.exec(t, old)
	d.exec(t, insertOld) // years ago
	d.commit(t, "a", "b")
	if got := measure(); got.Events != 3 || got.OldestAge < 365*24*time.Hour {
		t.Errorf("%+v, want 3 events and years", got)
	}
	publish(t, d, b, 3)
	testenv.Eventually(t, soon, func() error {
		if got := measure(); got != (relay.Backlog{}) {
			return fmt.Errorf("%+v when all is sent", got)
		}
		return nil
	})
	d.commit(t, "a")
	if got := measure(); got.Events != 1 || got.OldestAge <= 0 || got.OldestAge > time.Hour {
		t.Errorf("%+v, want 1 event and less than an hour", got)
	}
}

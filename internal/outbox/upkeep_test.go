package outbox_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/outbox"
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

func TestAPartitionIsDroppedOnceItIsOldAndEveryRelayPassedIt(t *testing.T) {
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

func TestAStragglerKeepsItsPartition(t *testing.T) {
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

func TestUpkeepGivesUpBehindAWriterAndLeavesTheNextOnesAlone(t *testing.T) {
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
	if took < 50*time.Millisecond || took > 5*time.Second {
		t.Errorf("gave up after %s", took)
	}
	commit(t, open)
	if p := keep(t, d); p.Dropped != 1 {
		t.Error("not dropped when the writer had gone")
	}
	d.commit(t, "b")
	publish(t, d, b, 3)
}

func TestRowsOfADayWithoutAPartitionAreSentOnceBeforeOrAfterTheyMove(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	tomorrow := ask[time.Time](t, d, `SELECT date_trunc('day', now() AT TIME ZONE 'UTC') + interval '36 hours'`)
	partition := "outbox_events_" + tomorrow.Format("20060102")
	d.exec(t, `DROP TABLE `+partition)
	insert := fmt.Sprintf(`INSERT INTO outbox_events (created_at, aggregate_type, aggregate_id, event_type, payload)
		VALUES ('%sZ', 'things', 'a', 'thing.changed', '{}')`, tomorrow.Format(time.DateTime))
	d.exec(t, insert)
	publish(t, d, b, 1)
	open := d.begin(t)
	if _, err := open.Exec(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	d.exec(t, insert)
	publish(t, d, b, 2) // the open one's row is a straggler now
	commit(t, open)
	d.exec(t, insert)
	if p, want := keep(t, d), (outbox.Partitions{Made: 1}); p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	if n := ask[int](t, d, `SELECT count(*) FROM `+partition); n != 4 {
		t.Errorf("%d rows were moved, want 4", n)
	}
	publish(t, d, b, 4)
	d.commit(t, "last") // what would be sent twice would come before it
	publish(t, d, b, 5)
	ids := map[uuid.UUID]bool{}
	for _, id := range b.ids() {
		ids[id] = true
	}
	if len(ids) != 5 || len(b.received()) != 5 {
		t.Errorf("%d messages of %d events, want 5", len(b.received()), len(ids))
	}
}

func TestTheBacklogIsWhatIsStillToBeSent(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	measure := func() outbox.Backlog {
		t.Helper()
		backlog, err := outbox.MeasureBacklog(t.Context(), d.relay, "main")
		if err != nil {
			t.Fatal(err)
		}
		return backlog
	}
	if got := measure(); got != (outbox.Backlog{}) {
		t.Errorf("%+v of an empty outbox", got)
	}
	d.exec(t, insertOld) // years ago
	d.commit(t, "a", "b")
	if got := measure(); got.Events != 3 || got.OldestAge < 365*24*time.Hour {
		t.Errorf("%+v, want 3 events and years", got)
	}
	publish(t, d, b, 3)
	testenv.Eventually(t, soon, func() error {
		if got := measure(); got != (outbox.Backlog{}) {
			return fmt.Errorf("%+v when all is sent", got)
		}
		return nil
	})
	d.commit(t, "a")
	if got := measure(); got.Events != 1 || got.OldestAge <= 0 || got.OldestAge > time.Hour {
		t.Errorf("%+v, want 1 event and less than an hour", got)
	}
}

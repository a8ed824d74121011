package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

// insertNow is an event of today, at or behind the partitions that upkeep wants.
const insertNow = `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('things', 'a', 'thing.changed', '{}')`

// Upkeep that waits for one writer makes the next ones queue behind it: for as long as it waits, and no longer, though the first one stays.
func TestWaitingUpkeepBlocksNoWriter(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.exec(t, old) // is to be dropped, for which upkeep wants a lock that a writer in the table holds
	d.commit(t, "a")
	publish(t, d, &broker{}, 1)
	open := d.begin(t)
	if _, err := open.Exec(t.Context(), insertNow); err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	done, worst := make(chan error, 1), time.Duration(0)
	go func() { // the next ones
		for ctx.Err() == nil {
			begun := time.Now()
			if _, err := d.owner.Exec(context.WithoutCancel(ctx), insertNow); err != nil {
				done <- err
				return
			}
			worst = max(worst, time.Since(begun))
		}
		done <- nil
	}()
	ends, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for range 5 {
		_, err := outbox.KeepPartitions(ends, d.relay, week)
		if code := sqlState(err); code != "55P03" {
			t.Errorf("upkeep behind a writer: %v", err)
		}
	}
	stop()
	if err := next(t, done, "a writer that queued behind upkeep, while another transaction was open"); err != nil {
		t.Fatal(err)
	}
	t.Logf("the slowest writer took %s", worst)
	if worst > soon { // 50 ms, on a machine that has nothing else to do
		t.Errorf("a writer waited %s", worst)
	}

	commit(t, open)
	testenv.Eventually(t, soon, func() error {
		p, err := outbox.KeepPartitions(t.Context(), d.relay, week)
		if err == nil && p.Dropped == 0 {
			err = errors.New("nothing was done")
		}
		return err
	})
}

func sqlState(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// To make a partition takes no lock that a writer, a reader or pg_dump holds or waits for.
func TestMakePartitionsBlocksNoWriter(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	for ahead := range 8 {
		d.exec(t, `DROP TABLE outbox_events_`+time.Now().UTC().Add(time.Duration(ahead)*24*time.Hour).Format("20060102"))
	}
	d.exec(t, old)
	open, dump := d.begin(t), d.begin(t)
	for tx, sql := range map[pgx.Tx]string{open: insertOld, dump: `LOCK TABLE outbox_events IN ACCESS SHARE MODE`} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	_, missing := d.owner.Exec(t.Context(), insertNow)
	if !outbox.MissingDay(missing) || outbox.MissingDay(nil) || outbox.MissingDay(&pgconn.PgError{Code: "23514", TableName: "outbox_events", ConstraintName: "c"}) {
		t.Errorf("a missing day is not recognised, or something else is: %v", missing)
	}

	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if made, err := outbox.MakePartitions(ctx, d.relay); err != nil || made != 8 {
		t.Errorf("made %d: %v", made, err)
	}
	if made, err := outbox.MakePartitions(ctx, d.relay); err != nil || made != 0 {
		t.Errorf("made %d again: %v", made, err)
	}
	d.exec(t, insertNow)
	commit(t, open)
	publish(t, d, &broker{}, 2)
}

func TestDeadLetterOutlivesItsPartition(t *testing.T) {
	t.Parallel()
	d, b, p := newDatabase(t), &broker{}, &picky{}
	d.exec(t, old)
	const insert = `INSERT INTO outbox_events (created_at, event_id, aggregate_type, aggregate_id, event_type, payload, headers)
		VALUES ('2020-01-01 12:00Z', $1, 'things', 'old', 'thing.changed', $2, '{"h": "v"}')`
	es := []uuid.UUID{uuid.New(), uuid.New()}
	for i, id := range es {
		d.exec(t, insert, id, []byte{byte(i), 0xff})
	}
	p.refuse(es[0])
	r := start(t, d.relay, p.open(b), nil)
	d.commit(t, "a")
	b.waitFor(t, 1)
	testenv.Eventually(t, soon, func() error {
		if n := ask[int64](t, d, `SELECT last_id FROM outbox_cursors`); n < 3 {
			return fmt.Errorf("the cursor stands at %d", n)
		}
		return nil
	})
	if got := letters(t, d); len(got) != 1 || got[0].Waiting != 2 {
		t.Fatalf("dead letters: %+v", got)
	}
	testenv.Eventually(t, soon, func() error { // its day goes although nobody has decided
		if p, err := outbox.KeepPartitions(t.Context(), d.relay, week); err != nil || p.Dropped != 1 {
			return fmt.Errorf("%+v, %w", p, err)
		}
		return nil
	})
	p.refuse()
	if err := relay.RetryDeadLetter(t.Context(), d.relay, "main", letters(t, d)[0].ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error {
		if n := ask[int](t, d, `SELECT count(*) FROM outbox_dead_letters WHERE state = 'sent'`); n != 2 {
			return fmt.Errorf("%d dead letters were sent", n)
		}
		return nil
	})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	got := slices.DeleteFunc(b.received(), func(m relay.Message) bool { return m.AggregateID != "old" })
	if diff := cmp.Diff(es, of(got, "old")); diff != "" || len(got) != len(es) {
		t.Fatalf("%d messages (-want +got):\n%s", len(got), diff)
	}
	for i, m := range got {
		if string(m.Payload) != string([]byte{byte(i), 0xff}) || string(m.Headers) != `{"h": "v"}` || m.CreatedAt.Year() != 2020 {
			t.Errorf("message %d: %q %s %s", i, m.Payload, m.Headers, m.CreatedAt)
		}
	}
}

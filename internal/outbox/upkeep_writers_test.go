package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// insertNow is an event of today, at or behind the partitions that upkeep wants.
const insertNow = `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('things', 'a', 'thing.changed', '{}')`

// Upkeep that waits for one writer makes the next ones queue behind it: for as long as it waits, and no longer, though the first one stays.
func TestWritersDoNotWaitForUpkeepThatWaitsForAnother(t *testing.T) {
	t.Parallel()
	// Each is something to do for which upkeep wants a lock that a writer in the table holds.
	for name, prepare := range map[string]func(t *testing.T, d database) (writes string){
		"a partition to be dropped": func(t *testing.T, d database) string {
			d.exec(t, old)
			d.commit(t, "a")
			publish(t, d, &broker{}, 1)
			return insertNow
		},
		"a day without a partition": func(t *testing.T, d database) string {
			d.exec(t, `DROP TABLE outbox_events_`+time.Now().UTC().Add(48*time.Hour).Format("20060102"))
			return `INSERT INTO outbox_events (created_at, aggregate_type, aggregate_id, event_type, payload) VALUES (now() + '30 days', 'things', 'a', 'thing.changed', '{}')`
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			writes := prepare(t, d)
			open := d.begin(t)
			if _, err := open.Exec(t.Context(), writes); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			done, worst := make(chan error, 1), time.Duration(0)
			go func() { // the next ones
				for ctx.Err() == nil {
					begun := time.Now()
					if _, err := d.owner.Exec(context.WithoutCancel(ctx), writes); err != nil {
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
			if worst > 5*time.Second { // 50 ms, on a machine that has nothing else to do
				t.Errorf("a writer waited %s", worst)
			}
			commit(t, open)
			testenv.Eventually(t, soon, func() error {
				p, err := outbox.KeepPartitions(t.Context(), d.relay, week)
				if err == nil && p.Made+p.Dropped == 0 {
					err = errors.New("nothing was done")
				}
				return err
			})
		})
	}
}

func sqlState(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

func TestRowsInTheDefaultPartitionAreReportedUntilTheyAreMoved(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	fill := func(day string, rows int) {
		t.Helper()
		d.exec(t, `INSERT INTO outbox_events (created_at, aggregate_type, aggregate_id, event_type, payload)
			SELECT $1::timestamptz, 'things', 'a', 'thing.changed', '{}' FROM generate_series(1, $2::int)`, day, rows)
	}
	fill("2020-01-01 12:00Z", 10_001) // more than upkeep moves while everybody waits
	fill("2020-01-02 12:00Z", 3)
	for range 2 {
		p := keep(t, d)
		p.Made = 0
		if want := (outbox.Partitions{DefaultRows: 1000}); p != want { // it counts so far
			t.Errorf("%+v, want %+v", p, want)
		}
	}
	if n := ask[int](t, d, `SELECT count(*) FROM outbox_events_default`); n != 10_001 {
		t.Errorf("%d rows are left in the default partition, want those of the day that has too many", n)
	}
	d.exec(t, `SELECT outbox_events_make_partitions(7, 20000)`) // an operator, at a quiet hour
	if p := keep(t, d); p.DefaultRows != 0 {
		t.Errorf("%d rows are still reported", p.DefaultRows)
	}
	if n := ask[int](t, d, `SELECT count(*) FROM ONLY outbox_events_20200101`); n != 10_001 {
		t.Errorf("%d rows were moved, want 10,001", n)
	}
}

// A clock, or somebody's own INSERT, may write any time.
func TestATimeThatIsNoDayDoesNotStopUpkeep(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"infinity", "-infinity", "0044-03-15 BC", "12026-01-01"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			d.exec(t, `INSERT INTO outbox_events (created_at, aggregate_type, aggregate_id, event_type, payload) VALUES ($1::text::timestamptz, 'things', 'a', 'thing.changed', '{}')`, at)
			d.exec(t, `DROP TABLE outbox_events_`+time.Now().UTC().Add(48*time.Hour).Format("20060102"))
			if p := keep(t, d); p.Made == 0 {
				t.Errorf("%+v", p)
			}
			publish(t, d, b, 1)
		})
	}
}

func TestADeadLetterOutlivesTheDayOfItsEvent(t *testing.T) {
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
	if err := outbox.RetryDeadLetter(t.Context(), d.relay, "main", letters(t, d)[0].ID); err != nil {
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
	got := slices.DeleteFunc(b.received(), func(m outbox.Message) bool { return m.AggregateID != "old" })
	if diff := cmp.Diff(es, of(got, "old")); diff != "" || len(got) != len(es) {
		t.Fatalf("%d messages (-want +got):\n%s", len(got), diff)
	}
	for i, m := range got {
		if string(m.Payload) != string([]byte{byte(i), 0xff}) || string(m.Headers) != `{"h": "v"}` || m.CreatedAt.Year() != 2020 {
			t.Errorf("message %d: %q %s %s", i, m.Payload, m.Headers, m.CreatedAt)
		}
	}
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestOldestWriterIsSeenWithoutRights(t *testing.T) {
	t.Parallel()
	d, w := newDatabase(t), relay.Writers{}
	oldest := func() time.Duration {
		t.Helper()
		age, err := w.Oldest(t.Context(), d.relay)
		if err != nil {
			t.Fatal(err)
		}
		return age
	}
	older := func(than time.Duration) {
		t.Helper()
		testenv.Eventually(t, soon, func() error {
			if got := oldest(); got <= than {
				return fmt.Errorf("the oldest is %s old", got)
			}
			return nil
		})
	}
	none := func(when string) {
		t.Helper()
		if oldest(); oldest() != 0 { // the first call may have seen a session of somebody else's upkeep
			t.Errorf("there is an oldest transaction %s", when)
		}
	}
	reads := d.begin(t)
	if _, err := reads.Exec(t.Context(), `SELECT FROM outbox_events`); err != nil {
		t.Fatal(err)
	}
	none("when one only reads")

	first := d.begin(t)
	changeAll(t, first, "a")
	older(10 * time.Millisecond)
	before, began := oldest(), time.Now()
	second := d.begin(t)
	changeAll(t, second, "b")
	older(before) // the first one's age goes on
	commit(t, first)
	if got := oldest(); got == 0 || got > time.Since(began) {
		t.Errorf("%s when the first had committed, and the second had begun %s ago", got, time.Since(began))
	}
	// A prepared transaction is in no session, and goes on being the same.
	before = oldest()
	if _, err := second.Exec(t.Context(), `PREPARE TRANSACTION '`+d.Name+`'`); err != nil { // the name is the whole server's
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.owner.Exec(context.Background(), `ROLLBACK PREPARED '`+d.Name+`'`) }) // there is none when the test went well
	older(before)
	d.exec(t, `COMMIT PREPARED '`+d.Name+`'`)
	none("when all have ended")
}

func TestBacklogCountsStragglersAndParkedEvents(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	open := d.begin(t)
	changeAll(t, open, "a")
	d.commit(t, "b")
	publish(t, d, b, 1)
	commit(t, open) // below the cursor, and nobody sends it
	got, err := relay.MeasureBacklog(t.Context(), d.relay, "main")
	if err != nil || got.OldestAge <= 0 || got.OldestAge > time.Hour {
		t.Errorf("%+v, %v: want the straggler's age", got, err)
	}
	b.onPublish = func(_ context.Context, batch []relay.Message) (int, error) {
		if batch[0].AggregateID == "a" {
			return 0, &relay.BatchError{Refused: true, Unsent: true, Err: errors.New("too large")}
		}
		return len(batch), nil
	}
	r := start(t, d.relay, b.Open, nil)
	defer func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}()
	d.commit(t, "a")
	testenv.Eventually(t, soon, func() error {
		got, err := relay.MeasureBacklog(t.Context(), d.relay, "main")
		if want := (relay.Backlog{DeadLetters: 1, ParkedAggregates: 1}); err == nil && got != want {
			err = fmt.Errorf("%+v, want %+v", got, want)
		}
		return err
	})
}

package relay

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// A statement of a term that is over may arrive late, when the same process leads again.
func TestTermIsHeldToItsRow(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"token":      `fencing_token = fencing_token + 1`,
		"holder":     `holder = 'another'`,
		"batches":    `batches = batches + 1`,
		"given back": `lease_until = '-infinity'`,
		"timeline":   "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			owner := db.Pool(t, "")
			term, err := elect(t.Context(), db.Pool(t, "relay"), "main", "test", time.Hour)
			if err != nil || term == nil {
				t.Fatal(term, err)
			}
			next := term.at
			next.Batches, next.Last = 1, 7
			if err := errors.Join(term.renew(t.Context()), term.move(t.Context(), next)); err != nil {
				t.Fatal(err)
			}
			if change == "" {
				term.identity.Timeline++
			} else if _, err := owner.Exec(t.Context(), `UPDATE outbox_cursors SET `+change); err != nil {
				t.Fatal(err)
			}

			var before, after string
			const row = `SELECT outbox_cursors::text FROM outbox_cursors`
			if err := owner.QueryRow(t.Context(), row).Scan(&before); err != nil {
				t.Fatal(err)
			}
			next.Batches, next.Last = 2, 8
			if err := term.renew(t.Context()); !errors.Is(err, ErrFenced) {
				t.Errorf("renew: %v", err)
			}
			if err := term.move(t.Context(), next); !errors.Is(err, ErrFenced) {
				t.Errorf("move: %v", err)
			}
			if name == "token" || name == "holder" {
				term.release(t.Context())
				if err := term.park(t.Context(), []int64{1}); !errors.Is(err, ErrFenced) {
					t.Errorf("park: %v", err)
				}
			}
			if err := owner.QueryRow(t.Context(), row).Scan(&after); err != nil {
				t.Fatal(err)
			}
			if before != after {
				t.Errorf("the row was %s and is %s", before, after)
			}
		})
	}
}

func TestOneOfTwoCandidatesIsElected(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner, relay := db.Pool(t, ""), db.Pool(t, "relay")
	first, err := elect(t.Context(), relay, "main", "one", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	first.release(t.Context())

	// Both have seen that it is free when they come to take it.
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_cursors FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	elected := make(chan *term, 2)
	for i := range 2 {
		go func() {
			term, err := elect(t.Context(), relay, "main", fmt.Sprint(i), time.Hour)
			if err != nil {
				t.Error(err)
			}
			elected <- term
		}()
	}
	testenv.Eventually(t, time.Minute, func() error {
		var n int
		err := owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'relay' AND wait_event_type = 'Lock'`).Scan(&n)
		if err == nil && n < 2 {
			err = fmt.Errorf("%d of 2 wait", n)
		}
		return err
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, b := <-elected, <-elected; (a == nil) == (b == nil) {
		t.Errorf("elected: %+v and %+v", a, b)
	}
}

// counting counts the batches that it takes.
type counting struct{ batches int }

func (p *counting) Publish(context.Context, []Message, Progress) error { p.batches++; return nil }

func (p *counting) Close() {}

// A process that was frozen for longer than its lease wakes up with a batch in hand, before its heartbeat has noticed.
func TestNothingIsSentOnALapsedLease(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		t.Run(fmt.Sprintf("taken %t", taken), func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			relay := &Relay{DB: db.Pool(t, "relay"), Name: "main"}
			relay.setDefaults()
			term, err := elect(t.Context(), relay.DB, "main", "test", time.Hour)
			if err != nil || term == nil {
				t.Fatal(term, err)
			}
			term.renewed.Store(new(time.Now().Add(-2 * time.Hour)))
			if taken {
				if _, err := db.Pool(t, "").Exec(t.Context(), `UPDATE outbox_cursors SET fencing_token = fencing_token + 1, holder = 'another'`); err != nil {
					t.Fatal(err)
				}
			}

			p := &counting{}
			l := &leader{Relay: relay, term: term, publisher: p, isolation: &isolation{}}
			_, err = l.send(t.Context(), []Message{{ID: 1}}, func([]Message) Progress { return Progress{} })
			if taken && (!errors.Is(err, ErrFenced) || p.batches != 0) || !taken && (err != nil || p.batches != 1 || term.remaining() < 0) {
				t.Errorf("%d batches were sent, %v, %s are left of the lease", p.batches, err, term.remaining())
			}
		})
	}
}

func TestTermEndsWithItsLease(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	term, err := elect(t.Context(), db.Pool(t, "relay"), "main", "test", time.Second)
	if err != nil || term == nil {
		t.Fatal(term, err)
	}
	term.db = db.Pool(t, "consumer") // which may not do this: it is as good as away
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := term.heartbeat(ctx); err == nil || term.remaining() > 0 || ctx.Err() != nil {
		t.Errorf("it ended with %v, and %s left", err, term.remaining())
	}
}

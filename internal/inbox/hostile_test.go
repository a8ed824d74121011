package inbox_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// What a handler does to its transaction is the event's failure, and no outage of the database that
// would stop all partitions for good.
func TestHandlerSpoilsItsTransaction(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(context.Context, pgx.Tx) error{
		"ignores a failed statement": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil
		},
		"rolls it back": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 2)
			c := d.consumer(t)
			c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
				if string(events[0].Key) == "bad" {
					return spoil(ctx, tx)
				}
				return d.handle(ctx, tx, events)
			}
			d.start(t, c)
			// Without a number nothing of the inbox's own runs behind the handler.
			d.produce(t, d.event(0, uuid.New(), "bad", "ce_sequence", ""), d.numbered(1, "beside", 1))
			d.wantApplied(t, map[string][]int64{"beside": {1}})
			if l := d.letters(t, 1)[0]; l.Tries != c.Tries {
				t.Errorf("letter %+v", l)
			}
		})
	}
}

// A query that crashes its backend would do so for ever, and stop everybody.
func TestEventBreaksItsConnection(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]bool{"the handler returns the error": true, "the handler ignores it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			c := d.consumer(t)
			c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
				for _, e := range events {
					if string(e.Key) == "bad" && !d.cured.Load() {
						_ = tx.Conn().PgConn().Conn().Close() // as the server does when it crashes
						if _, err := tx.Exec(ctx, `SELECT 1`); told {
							return err
						}
						return nil
					}
				}
				return d.handle(ctx, tx, events)
			}
			d.start(t, c)
			d.produce(t, d.numbered(0, "bad", 1), d.numbered(0, "beside", 1))
			d.wantApplied(t, map[string][]int64{"beside": {1}})
			l := d.letters(t, 1)[0]
			if l.Tries != 2*c.Tries || !strings.Contains(l.Reason, "connection lost in the handler") {
				t.Errorf("letter %+v", l)
			}

			// An operator's retry ends, too.
			if err := retry(t.Context(), d.pool, l.ID); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, waitLimit, func() error {
				found, err := inbox.FindDeadLetter(t.Context(), d.pool, "test", l.ID)
				if err == nil && (found.State != "parked" || found.Tries <= l.Tries) {
					err = fmt.Errorf("%s after %d tries", found.State, found.Tries)
				}
				return err
			})
			d.cured.Store(true)
			if err := retry(t.Context(), d.pool, l.ID); err != nil {
				t.Fatal(err)
			}
			d.wantApplied(t, map[string][]int64{"beside": {1}, "bad": {1}})
		})
	}
}

// ANALYZE of a large inbox_events keeps a missing day from being made for minutes.
func TestWaitForADayIsNoFailure(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	tx, err := d.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK TABLE inbox_events IN SHARE UPDATE EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}

	c := d.consumer(t)
	c.Tries, c.TryFor = 1, time.Millisecond
	d.start(t, c)
	d.produce(t, d.numbered(0, "a", 1, "ce_time", ago(3).Format(time.RFC3339Nano)))
	testenv.Eventually(t, waitLimit, func() error {
		if waits := strings.Count(d.logged(), "database away, waiting"); waits <= 2*c.Tries {
			return fmt.Errorf("it has waited %d times, no more often than an event is tried", waits)
		}
		return nil
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.wantApplied(t, map[string][]int64{"a": {1}})
	d.letters(t, 0)
	if n := d.outcome(inbox.Failed); n != 0 {
		t.Errorf("%d failed", n)
	}
}

// An index takes 2,704 bytes, Kafka any key.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	key := func(length int) []byte {
		key := make([]byte, length)
		_, _ = rand.Read(key)
		return bytes.ReplaceAll(key, []byte{0}, []byte{1})
	}
	fine, bad := key(5000), key(1025)
	d := newDesk(t, testenv.Brokers(t), 1)
	c := d.consumer(t)
	var fines, bads atomic.Int64
	c.Handle = func(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
		for _, e := range events {
			switch {
			case bytes.Equal(e.Key, fine) && e.Sequence == fines.Load()+1:
				fines.Add(1)
			case bytes.Equal(e.Key, bad) && d.cured.Load() && e.Sequence == bads.Load()+1:
				bads.Add(1)
			default:
				return errors.New("out of order, or not cured")
			}
		}
		return nil
	}
	record := func(key []byte, n int) *kgo.Record {
		r := d.numbered(0, "", n)
		r.Key = key
		return r
	}
	d.start(t, c)
	d.produce(t, record(fine, 1))
	d.atLeast(t, inbox.Processed, 1)
	d.produce(t, record(bad, 1))
	l := d.letters(t, 1)[0]
	d.produce(t, record(bad, 2))
	d.atLeast(t, inbox.Parked, 2)
	d.produce(t, record(fine, 2))
	d.atLeast(t, inbox.Processed, 2)

	d.cured.Store(true)
	if err := retry(t.Context(), d.pool, l.ID); err != nil {
		t.Fatal(err)
	}
	d.letters(t, 0)
	d.atLeast(t, inbox.Processed, 4)
	if n := d.gapsSeen(); bads.Load() != 2 || n > 0 {
		t.Errorf("%d of 2 released, %d kinds of gaps", bads.Load(), n)
	}
}

// A partition that has work for many passes must not keep the others from being fetched.
func TestBusyPartitionLeavesOthersTheirTurn(t *testing.T) {
	t.Parallel()
	const events, slow = 60, 500 * time.Millisecond
	d := newDesk(t, testenv.Brokers(t), 2)
	records := []*kgo.Record{d.numbered(0, "bad", 1, poisoned...)}
	for n := range events {
		records = append(records, d.numbered(0, "good", n+1))
	}
	d.produce(t, records...)

	c := d.consumer(t)
	var done, before atomic.Int64
	c.Handle = func(ctx context.Context, tx pgx.Tx, es []inbox.Event) error {
		switch {
		case string(es[0].Key) == "beside":
			before.Store(done.Load())
		case len(es) == 1:
			<-time.After(slow) // a handler that takes its time
			done.Add(1)
		}
		return d.handle(ctx, tx, es)
	}
	d.start(t, c)
	d.atLeast(t, inbox.Processed, 5)
	d.produce(t, d.numbered(1, "beside", 1))
	d.wantApplied(t, map[string][]int64{"good": numbers(1, events), "beside": {1}})
	if n := before.Load(); n > events {
		t.Errorf("it had no turn before all %d of the other partition were done", n)
	}
}

func TestClientID(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"": "oncepay-consumer", "shop": "shop"} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			c := d.consumer(t)
			c.Kafka.ClientID = given
			d.start(t, c)
			testenv.Eventually(t, waitLimit, func() error {
				ids := []string{}
				for _, m := range d.members(t) {
					ids = append(ids, m.ClientID)
				}
				if fmt.Sprint(ids) != "["+want+"]" {
					return fmt.Errorf("the group has %v, want %s", ids, want)
				}
				return nil
			})
		})
	}
}

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestGapsAreCountedAndNamed(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	bare := d.event(0, [16]byte{1}, "bare", "ce_sequence", "")
	batches := [][]*kgo.Record{
		{d.numbered(0, "whole", 1), d.numbered(0, "whole", 2), d.numbered(0, "left out", 1), d.numbered(0, "left out", 4), bare},
		{d.numbered(0, "whole", 3), d.numbered(0, "left out", 5), d.numbered(0, "left out", 7)}, // one that is in the past is no alarm
		{d.numbered(0, "whole", 3), d.numbered(0, "whole", 4), d.numbered(0, "from the middle", 9), d.numbered(0, "from the middle", 10)},
	}
	d.start(t, d.consumer(t))
	n := 0
	for _, b := range batches {
		d.produce(t, b...)
		n += len(b)
		d.atLeast(t, inbox.Processed, n)
	}
	testenv.Eventually(t, waitLimit, func() error { // OnGap is called behind OnEvent
		d.mu.Lock()
		defer d.mu.Unlock()
		if got, want := fmt.Sprint(d.gaps), "map[missing:2 repeated:1 unknown:1]"; got != want {
			return fmt.Errorf("gaps %s, want %s", got, want)
		}
		return nil
	})
	if log := d.logged(); !strings.Contains(log, `kind=missing topic=`+d.topic+` key="left out" sequence=4 last_sequence=1`) {
		t.Errorf("not named in\n%s", log)
	}
}

func TestSkippedLetterIsNoGap(t *testing.T) {
	t.Parallel()
	d := newDesk(t, testenv.Brokers(t), 1)
	d.start(t, d.consumer(t))
	d.produce(t, d.numbered(0, "a", 1), d.numbered(0, "a", 2, poisoned...), d.numbered(0, "a", 3), d.numbered(0, "new", 1, poisoned...), d.numbered(0, "new", 2))
	for _, l := range d.letters(t, 2) {
		if err := inbox.SkipDeadLetter(t.Context(), d.pool, "test", l.ID, "gone"); err != nil {
			t.Fatal(err)
		}
	}
	d.wantApplied(t, map[string][]int64{"a": {1, 3}, "new": {2}})
	d.produce(t, d.numbered(0, "a", 4))
	d.wantApplied(t, map[string][]int64{"a": {1, 3, 4}, "new": {2}})
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff(map[string]int{}, d.gaps); diff != "" {
		t.Error(diff)
	}
}

// counter counts the statements of the transactions that take events.
type counter struct{ statements atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "WITH ORDINALITY t(event_id, key, i)") || strings.Contains(q.SQL, "INSERT INTO inbox_events") || strings.Contains(q.SQL, "inbox_sequences AS s") ||
		strings.Contains(q.SQL, "handled") {
		c.statements.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestBatchTakesAsManyStatementsAsAnEvent(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, testenv.Brokers(t), 1)
			var sent counter
			pool := d.poolWith(t, func(c *pgx.ConnConfig) { c.Tracer = &sent })
			if err := inbox.MakeDays(t.Context(), pool, ago(0)); err != nil {
				t.Fatal(err)
			}
			var rs []*kgo.Record
			for i := range n {
				rs = append(rs, d.numbered(0, fmt.Sprint(i), 1))
			}
			var calls atomic.Int64
			c := d.consumer(t)
			c.DB = pool
			c.Handle = func(ctx context.Context, tx pgx.Tx, _ []inbox.Event) error {
				calls.Add(1)
				_, err := tx.Exec(ctx, `SELECT 'handled'`)
				return err
			}
			d.produce(t, rs...)
			d.start(t, c)
			testenv.Eventually(t, waitLimit, func() error {
				if d.outcome(inbox.Processed) < n {
					return errors.New("not yet")
				}
				return nil
			})
			if got, want := sent.statements.Load(), 4*calls.Load(); got != want || n == 1 && calls.Load() != 1 || calls.Load() > int64(n)/50+1 {
				t.Errorf("%d statements for %d batches, want %d", got, calls.Load(), want)
			}
		})
	}
}

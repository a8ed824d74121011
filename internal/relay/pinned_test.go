package relay_test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/relay"
)

// TestPinnedSnapshot sends 5,000 events a second while a snapshot is held open, which keeps each version of the cursor's row. It takes as
// long as PINNED says, and shows the time from commit to acknowledgement in the first and in the last minute:
//
//	PINNED=30m go test ./internal/relay -run TestPinnedSnapshot -timeout 40m -v
func TestPinnedSnapshot(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("PINNED"))
	if err != nil {
		t.Skip("PINNED says for how long, such as 30m")
	}
	const writers, each, rate = 4, 10, 5000
	between := writers * each * time.Second / rate
	window := min(time.Minute, length/3)

	d := newDatabase(t)
	var mu sync.Mutex
	var first, last []time.Duration // from commit to acknowledgement
	committed, acked, began := map[string]time.Time{}, map[string]time.Time{}, time.Now()
	note := func(key string, mine, other map[string]time.Time) {
		mu.Lock()
		defer mu.Unlock()
		mine[key] = time.Now()
		if other[key].IsZero() {
			return
		}
		took := max(0, acked[key].Sub(committed[key])) // its writer may hear of the commit later
		delete(acked, key)
		delete(committed, key)
		switch since := time.Since(began); {
		case since < window:
			first = append(first, took)
		case since > length-window:
			last = append(last, took)
		}
	}
	run := func(r *relay.Relay) {
		r.OnPublish = func(ms []relay.Message, _ time.Duration) {
			for i := range ms {
				if ms[i].Type == "last" {
					note(ms[i].AggregateID, acked, committed)
				}
			}
		}
	}
	forgetful := func(context.Context, string, string) (relay.Publisher, *relay.Progress, error) {
		return &forgetting{}, nil, nil
	}
	leader := start(t, d.relay, forgetful, run)
	next(t, leader.leading, "a leader")
	standby := start(t, d.relay, forgetful, run)

	moves, pin := d.countMoves(t), d.begin(t)
	if _, err := pin.Exec(t.Context(), `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox_cursors`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for w := range writers {
		conn, err := pgx.Connect(t.Context(), d.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		all.Go(func() {
			for n, due := 0, began; time.Since(began) < length; n, due = n+1, due.Add(between) {
				<-time.After(time.Until(due))
				key := strconv.Itoa(n*writers + w)
				_, err := conn.Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
					SELECT 'things', $1, CASE i WHEN $2 THEN 'last' ELSE 'other' END, repeat('x', 400)::bytea FROM generate_series(1, $2::int) i ORDER BY i`, key, each)
				if err != nil {
					t.Error(err)
					return
				}
				note(key, committed, acked)
			}
		})
	}
	all.Wait()

	stopped := time.Now()
	if err := leader.stop(); err != nil {
		t.Fatal(err)
	}
	next(t, standby.leading, "the standby")
	if took := time.Since(stopped); took > time.Second {
		t.Errorf("the hand-over took %s", took)
	} else {
		t.Logf("the hand-over took %s", took)
	}
	before, after := p99(first), p99(last)
	t.Logf("p99 of the first %s %s, of the last %s, behind %d moves", window, before, after, moves())
	if after > 2*before {
		t.Errorf("p99 has become %s, more than twice %s", after, before)
	}
}

func p99(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)*99/100]
}

// forgetting takes everything.
type forgetting struct{}

func (*forgetting) Publish(context.Context, []relay.Message, relay.Progress) error { return nil }

func (*forgetting) Close() {}

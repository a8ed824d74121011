package main

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/tools/rig"
)

// window is a period without faults. It records how long its payments took, from the beginning of
// their transaction until a read_committed reader had them.
type window struct {
	name        string
	from, until time.Time
	took        rig.Latencies
}

func newWindow(name string, begun time.Time, length time.Duration, from, until float64) *window {
	at := func(share float64) time.Time { return begun.Add(time.Duration(share * float64(length))) }
	return &window{name, at(from), at(until), rig.NewLatencies()}
}

// tail reads the payments' topic as records arrive.
type tail struct {
	windows []*window

	mu      sync.Mutex
	longest time.Duration // of all payments
	newest  time.Time     // when the youngest payment that arrived was made
}

func (t *tail) run(ctx context.Context, brokers []string, topic string) error {
	client, err := rig.Consumer(brokers, topic, kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()

	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx) // the client retries what fails
		now := time.Now()
		fetches.EachRecord(func(r *kgo.Record) { t.take(r, now) })
	}
	return nil
}

func (t *tail) take(r *kgo.Record, now time.Time) {
	for _, h := range r.Headers {
		made, err := time.Parse(time.RFC3339Nano, string(h.Value))
		if h.Key != "ce_time" || err != nil {
			continue // count checks the records themselves
		}

		took := now.Sub(made)
		// A payment counts in the window in which it arrives.
		for _, w := range t.windows {
			if !now.Before(w.from) && now.Before(w.until) {
				w.took.Record(took)
			}
		}

		t.mu.Lock()
		t.longest = max(t.longest, took)
		if made.After(t.newest) {
			t.newest = made
		}
		t.mu.Unlock()
	}
}

// awaitNewer waits until a payment made after than has arrived, and returns the time since than.
func (t *tail) awaitNewer(ctx context.Context, than time.Time) (time.Duration, error) {
	const what = "a payment arrived that was made after the fault"
	err := rig.Until(ctx, recoverMax, what, func(context.Context) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.newest.After(than)
	})
	return time.Since(than), err
}

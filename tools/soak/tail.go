package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// window is a period without faults. It records how long its payments took, from the beginning of
// their transaction until a read_committed reader had them.
type window struct {
	name        string
	from, until time.Time
	took        *hdrhistogram.Histogram // µs
}

func newWindow(name string, begun time.Time, length time.Duration, from, until float64) *window {
	at := func(share float64) time.Time { return begun.Add(time.Duration(share * float64(length))) }
	took := hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)
	return &window{name, at(from), at(until), took}
}

func (w *window) quantile(percent float64) float64 {
	return float64(w.took.ValueAtQuantile(percent)) / 1000
}

// tail reads the payments' topic as records arrive.
type tail struct {
	windows []*window

	mu      sync.Mutex
	longest time.Duration // of all payments
	newest  time.Time     // when the youngest payment that arrived was made
}

func (t *tail) run(ctx context.Context, brokers []string, topic string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return fmt.Errorf("read %s: %w", topic, err)
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
				most := w.took.HighestTrackableValue()
				_ = w.took.RecordValue(min(max(1, took.Microseconds()), most))
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
	err := until(ctx, recoverMax, what, func(context.Context) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.newest.After(than)
	})
	return time.Since(than), err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/uuid"
)

// load is one stretch of traffic.
type load struct {
	dial        func() (net.Conn, error)
	payments    *payments
	connections int
	rate        float64     // requests a second, whatever becomes of those before (open loop); 0: each connection sends when it was answered (closed loop)
	duplicates  float64     // share of requests that repeat an answered one of the same connection
	replay      []uuid.UUID // send these keys, which have answers, over and over; nil: new ones
	refusals    bool        // 429 is an answer like any other
	warmup      time.Duration
	window      time.Duration
	pause       func(time.Duration)
}

// patience is how long after the end of the window answers may come. What comes later is an error, as it is for clients.
const patience = 20 * time.Second

// traffic is what became of a load.
type traffic struct {
	answered  int                     // requests of the window. Closed loop: answered in it; open loop: due in it
	latencies *hdrhistogram.Histogram // of these, in microseconds. Open loop: since the request was due, not since it was sent
	first     int                     // first answers, warm-up included: so many payments there must be
	refused   int                     // 429, warm-up included
	keys      []uuid.UUID             // of these
	wrong     map[string]int          // answers that were not expected, by what they were
}

// run sends until the window is over, and calls begin and end when it begins and ends.
func (l load) run(ctx context.Context, begin, end func()) (traffic, error) {
	conns := make([]net.Conn, 0, l.connections)
	closeAll := func() {
		for _, c := range conns {
			c.Close()
		}
	}
	defer func() { closeAll() }()
	for range l.connections {
		c, err := l.dial()
		if err != nil {
			return traffic{}, fmt.Errorf("connect to the API: %w", err)
		}
		conns = append(conns, c)
	}
	defer context.AfterFunc(ctx, closeAll)()

	start := time.Now()
	s := span{start.Add(l.warmup), start.Add(l.warmup + l.window)}
	due := make(chan time.Time, int(l.rate*(l.warmup+l.window).Seconds())+1) // room for all: the clock waits for nobody
	workers := make([]*worker, len(conns))
	var all sync.WaitGroup
	for i, c := range conns {
		_ = c.SetDeadline(s.until.Add(patience)) // a connection that cannot have one fails at once
		w := &worker{load: &l, conn: c, span: s, next: i, answers: answers{from: c}, wrong: map[string]int{}}
		workers[i] = w
		if l.rate > 0 {
			all.Go(func() { w.open(due) })
		} else {
			all.Go(w.closed)
		}
	}
	all.Go(func() {
		wait(ctx, s.from)
		begin()
		wait(ctx, s.until)
		end()
	})
	if l.rate > 0 {
		l.tick(ctx, start, s.until, due)
	}
	all.Wait()
	if ctx.Err() != nil {
		return traffic{}, context.Cause(ctx)
	}
	return sum(workers), nil
}

// tick hands out the times at which requests are due, evenly, each when it has come. It never waits for the requests.
func (l load) tick(ctx context.Context, start, until time.Time, due chan<- time.Time) {
	defer close(due)
	for i := 0; ctx.Err() == nil; i++ {
		at := start.Add(time.Duration(float64(i) / l.rate * float64(time.Second)))
		if !at.Before(until) {
			return
		}
		for d := time.Until(at); d > 0; d = time.Until(at) {
			l.pause(d)
		}
		due <- at
	}
}

func wait(ctx context.Context, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// span is the window. What happens before it is the warm-up.
type span struct{ from, until time.Time }

func (s span) holds(t time.Time) bool { return !t.Before(s.from) && t.Before(s.until) }

// worker is one connection.
type worker struct {
	*load
	conn    net.Conn
	answers answers
	span    span
	next    int // place in replay

	took    []time.Duration // of requests in the window; a histogram is made of them when nothing is measured any more
	keys    []uuid.UUID
	refused int
	wrong   map[string]int
}

// closed sends the next request when the one before is answered.
func (w *worker) closed() {
	buffer := w.payments.buffer()
	for sent := time.Now(); sent.Before(w.span.until); {
		if !w.exchange(buffer) {
			return
		}
		now := time.Now()
		if w.span.holds(now) {
			w.took = append(w.took, now.Sub(sent))
		}
		sent = now
	}
}

// open sends what is due. A request that had to wait for a connection has waited: its time counts from when it was due.
func (w *worker) open(due <-chan time.Time) {
	buffer := w.payments.buffer()
	for at := range due {
		if !w.exchange(buffer) {
			return
		}
		if w.span.holds(at) {
			w.took = append(w.took, time.Since(at))
		}
	}
}

// exchange sends one request and judges the answer. false: the connection is of no more use.
func (w *worker) exchange(buffer []byte) bool {
	key, expected := w.choose()
	w.payments.write(buffer, key)
	if _, err := w.conn.Write(buffer); err != nil {
		w.wrong[reason(err)]++
		return false
	}
	got, err := w.answers.next()
	switch {
	case err != nil:
		w.wrong[reason(err)]++
		return false
	case got.status == 429 && w.refusals:
		w.refused++
	case got.status != 201:
		w.wrong[fmt.Sprintf("status %d", got.status)]++
	case got.replayed != expected:
		w.wrong[fmt.Sprintf("Idempotent-Replayed %q where %q was expected", got.replayed, expected)]++
	case expected == "false":
		w.keys = append(w.keys, key)
	}
	return true
}

// choose returns the next key, and what Idempotent-Replayed has to say.
func (w *worker) choose() (key uuid.UUID, replayed string) {
	if len(w.replay) > 0 {
		key, w.next = w.replay[w.next%len(w.replay)], w.next+w.connections
		return key, "true"
	}
	if w.duplicates > 0 && len(w.keys) > 0 && rand.Float64() < w.duplicates {
		return w.keys[rand.IntN(len(w.keys))], "true"
	}
	return newKey(), "false"
}

// newKey is a version 4 UUID like any other, but without asking the kernel for each.
func newKey() (key uuid.UUID) {
	hi, lo := rand.Uint64(), rand.Uint64()
	for i := range 8 {
		key[i], key[8+i] = byte(hi>>(8*i)), byte(lo>>(8*i))
	}
	key[6], key[8] = key[6]&0x0f|0x40, key[8]&0x3f|0x80
	return key
}

// reason is the same for the same trouble: without addresses and ports.
func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

func sum(workers []*worker) traffic {
	t := traffic{latencies: hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3), wrong: map[string]int{}}
	for _, w := range workers {
		t.answered += len(w.took)
		for _, d := range w.took {
			_ = t.latencies.RecordValue(min(max(1, d.Microseconds()), t.latencies.HighestTrackableValue()))
		}
		t.first += len(w.keys)
		t.refused += w.refused
		t.keys = append(t.keys, w.keys...)
		for what, n := range w.wrong {
			t.wrong[what] += n
		}
	}
	return t
}

// err names the answers that were not expected.
func (t traffic) err() error {
	if len(t.wrong) == 0 {
		return nil
	}
	var list []string
	for _, what := range slices.Sorted(maps.Keys(t.wrong)) {
		list = append(list, fmt.Sprintf("%d × %s", t.wrong[what], what))
	}
	return errors.New("answers that were not expected: " + strings.Join(list, "; "))
}

// quantile of the latencies, in milliseconds.
func (t traffic) quantile(percent float64) float64 {
	return float64(t.latencies.ValueAtQuantile(percent)) / 1000
}

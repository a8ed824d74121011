package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
)

const (
	writers    = 8 // connections; each has aggregates of its own, so that their commits have one order
	steadyWarm = time.Second
	// stragglers is how long after the last commit an event may come before it is called missing.
	stragglers = 30 * time.Second
)

// pace is an open loop: transactions are due at fixed times, whatever becomes of those before.
type pace struct {
	rate int // events a second
	each int // events of one transaction
	hold bool
	long time.Duration // window
}

// paces are few events in transactions of their own, and many in transactions of ten: one fsync each would measure the disk.
var paces = []pace{{rate: 500, each: 1}, {rate: 5000, each: 10}}

func (p pace) String() string {
	if p.hold {
		return fmt.Sprintf("%d/s, a transaction open", p.rate)
	}
	return fmt.Sprintf("%d/s", p.rate)
}

// transactions of each writer.
func (p pace) transactions() int {
	return int((steadyWarm + p.long).Seconds() * float64(p.rate) / float64(p.each*writers))
}

// paced is what it showed: commit to consumer, in microseconds.
type paced struct {
	latencies *hdrhistogram.Histogram
	written   float64 // events a second of the window that were committed
}

func (m paced) quantile(percent float64) float64 {
	return float64(m.latencies.ValueAtQuantile(percent)) / 1000
}

// moments are when each event was committed and when it was consumed.
type moments struct{ committed, consumed []time.Time }

// steady measures one relay with traffic.
func (b *relayBench) steady(ctx context.Context, c contender, p pace) (m paced, err error) {
	d, err := b.server.fresh(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, b.server.release(context.WithoutCancel(ctx), d)) }()
	// The first event is sent before the clock starts, the last one is that of the transaction that stays open.
	events := 2 + p.transactions()*writers*p.each
	if !p.hold {
		events--
	}
	_, err = b.session(ctx, c, d, func(s *relaySession) (int, error) {
		at := moments{make([]time.Time, events), make([]time.Time, events)}
		window, err := s.traffic(ctx, c, d, p, at)
		m = at.measure(window)
		return events, err
	})
	if err != nil {
		return m, fmt.Errorf("%s, %s: %w", p, c, err)
	}
	return m, nil
}

// measure takes the events that were committed in the window; without the first and that of the open transaction, which is committed at its end.
func (at moments) measure(window span) paced {
	m := paced{latencies: hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)}
	n := 0
	for i, committed := range at.committed {
		if !window.holds(committed) {
			continue
		}
		n++
		// An event may be consumed before its writer has heard of the commit.
		took := max(1, at.consumed[i].Sub(committed).Microseconds())
		_ = m.latencies.RecordValue(min(took, m.latencies.HighestTrackableValue()))
	}
	m.written = float64(n) / window.until.Sub(window.from).Seconds()
	return m
}

// traffic writes and consumes, and returns the window.
func (s *relaySession) traffic(ctx context.Context, c contender, d database, p pace, at moments) (window span, err error) {
	conns := make([]*pgx.Conn, writers+1)
	for i := range conns {
		if conns[i], err = connect(ctx, d.owner); err != nil {
			return window, err
		}
		defer conns[i].Close(context.WithoutCancel(ctx))
	}
	client, err := s.topic.consumer()
	if err != nil {
		return window, err
	}
	defer client.Close()

	g, ctx := errgroup.WithContext(ctx)
	first := make(chan struct{})
	g.Go(func() error { return s.consume(ctx, client, at, first) })
	g.Go(func() error {
		// One event through all of it: now the relay leads, the consumer has its partitions, and connections are warm.
		if err := insert(ctx, conns[0], c.table, []int64{0}, []string{keyOf(0)}); err != nil {
			return err
		}
		at.committed[0] = time.Now()
		select {
		case <-first:
		case <-ctx.Done():
			return nil // the consumer says why
		}
		start := time.Now()
		window = span{start.Add(steadyWarm), start.Add(steadyWarm + p.long)}
		all, ctx := errgroup.WithContext(ctx)
		for w := range writers {
			all.Go(func() error { return p.write(ctx, conns[w], c.table, w, start, at.committed) })
		}
		if p.hold {
			all.Go(func() error { return hold(ctx, conns[writers], c.table, window, len(at.committed)-1) })
		}
		return all.Wait()
	})
	return window, g.Wait()
}

// consume returns when all events have come, or none for a long time. What is missing then, the topic is asked.
func (s *relaySession) consume(ctx context.Context, client *kgo.Client, at moments, first chan<- struct{}) error {
	for missing := len(at.consumed); missing > 0; {
		poll, cancel := context.WithTimeout(ctx, stragglers)
		fetches := client.PollFetches(poll)
		now := time.Now()
		late := poll.Err() != nil
		cancel()
		select {
		case <-s.relay.Ended:
			return s.relay.Err()
		default:
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case late:
			s.relay.Stop()
			return fmt.Errorf("no event came for %s, and %d are missing: %w", stragglers, missing, s.relay.Err())
		case fetches.Err() != nil:
			return fmt.Errorf("consume: %w", fetches.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n := numberOf(r.Value)
			if n < 0 || n >= len(at.consumed) || !at.consumed[n].IsZero() {
				return // strange or repeated: counted when the topic is scanned
			}
			at.consumed[n] = now
			missing--
			if n == 0 {
				close(first)
			}
		})
	}
	return nil
}

// write commits one writer's events when they are due, and notes when the commit returned.
func (p pace) write(ctx context.Context, conn *pgx.Conn, table string, writer int, start time.Time, committed []time.Time) error {
	numbers, keys := make([]int64, p.each), make([]string, p.each)
	between := time.Duration(p.each) * time.Second / time.Duration(p.rate) // of two transactions, whoever writes them
	for i := range p.transactions() {
		wait(ctx, start.Add(time.Duration(i*writers+writer)*between))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for j := range p.each {
			n := numberFor(writer, i*p.each+j)
			numbers[j], keys[j] = int64(n), keyOf(n)
		}
		if err := insert(ctx, conn, table, numbers, keys); err != nil {
			return err
		}
		now := time.Now()
		for _, n := range numbers {
			committed[n] = now
		}
	}
	return nil
}

// numberFor numbers the events of a writer: from 1, and so that no other writer has events of the same aggregate.
func numberFor(writer, i int) int { return 1 + i*writers + writer }

// hold writes an event of another aggregate when the window begins, and commits when it ends.
func hold(ctx context.Context, conn *pgx.Conn, table string, window span, number int) error {
	wait(ctx, window.from)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := insert(ctx, tx.Conn(), table, []int64{int64(number)}, []string{"held"}); err != nil {
			return err
		}
		wait(ctx, window.until)
		return context.Cause(ctx)
	})
}

// steadies measures all traffic there is, in rounds.
func (b *relayBench) steadies(ctx context.Context) error {
	for round := range b.rounds {
		for _, p := range paces {
			if err := b.steadyRound(ctx, round, p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *relayBench) steadyRound(ctx context.Context, round int, p pace) error {
	p.long = time.Duration(b.seconds) * time.Second
	plain, err := b.steady(ctx, b.ours(), p)
	if err != nil {
		return err
	}
	p.hold = true
	held, err := b.steady(ctx, b.ours(), p)
	if err != nil {
		return err
	}
	b.say("round %d, %d events/s: p99 %.1f ms, with a transaction open %.1f ms", round+1, p.rate, plain.quantile(99), held.quantile(99))
	b.figures.compareSteady(p.rate, plain, held)
	if p.rate != paces[0].rate {
		return nil
	}
	p.hold = false
	theirs, err := b.steady(ctx, tutorialContender(), p)
	if err != nil {
		return err
	}
	b.say("round %d, %d events/s: tutorial p99 %.0f ms", round+1, p.rate, theirs.quantile(99))
	b.figures.add("tutorial_p50_ms_500", theirs.quantile(50))
	b.figures.add("tutorial_p99_ms_500", theirs.quantile(99))
	b.figures.add("p99_ratio_500", theirs.quantile(99)/plain.quantile(99))
	return nil
}

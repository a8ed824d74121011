package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/tools/rig"
)

const (
	writers    = 8 // connections; each has aggregates of its own, so that their commits have one order
	steadyWarm = time.Second
	// lateness is how long after the last one an event may come before it is called missing.
	lateness = 30 * time.Second
)

// pace is an open loop: transactions are due at fixed times, however long those before take.
type pace struct {
	name string // its figures begin with it
	contender
	rate int  // events a second
	each int  // events of one transaction
	hold bool // beside a writing transaction that stays open
}

// paces are few events in transactions of their own, and many in transactions of ten: one fsync
// each would measure the disk.
var paces = []pace{
	{"ours_500", ours, 500, 1, false},
	{"hold_500", ours, 500, 1, true},
	{"tutorial_500", tutorial, 500, 1, false},
	{"ours_5000", ours, 5000, 10, false},
	{"hold_5000", ours, 5000, 10, true},
}

// transactions of each writer.
func (p pace) transactions(window time.Duration) int {
	return int((steadyWarm + window).Seconds() * float64(p.rate) / float64(p.each*writers))
}

// steadies measures all traffic there is, in rounds.
func (b *relayBench) steadies(ctx context.Context) error {
	for range b.rounds {
		for _, p := range paces {
			m, err := b.steady(ctx, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}

			b.Say("%s: p50 %.1f ms, p99 %.1f ms", p.name, m["p50_ms"], m["p99_ms"])
			b.figures.add(p.name, m, "")
		}
	}

	return nil
}

// steady measures one relay with traffic.
func (b *relayBench) steady(ctx context.Context, p pace) (m measured, err error) {
	database, drop, err := b.fresh(ctx)
	if err != nil {
		return nil, err
	}
	defer drop()

	// The first event is sent before the clock starts, the last one is that of the transaction that
	// stays open.
	events := 1 + p.transactions(b.window())*writers*p.each
	if p.hold {
		events++
	}
	err = b.session(ctx, p.contender, database, func(s *relaySession) (int, error) {
		at := moments{make([]time.Time, events), make([]time.Time, events)}
		window, err := s.traffic(ctx, p, b.owner(database), at)
		m = at.measure(window, p.rate)
		return events, err
	})
	return m, err
}

// moments are when each event was committed and when it was consumed.
type moments struct{ committed, consumed []time.Time }

// measure takes the events that were committed in the window: without the first, and without that
// of the open transaction, which is committed at its end. A latency at less than the rate in its
// name is not a number.
func (at moments) measure(window span, rate int) measured {
	took := rig.NewLatencies()
	for i, committed := range at.committed {
		if window.holds(committed) {
			// An event may be consumed before its writer has heard of the commit.
			took.Record(at.consumed[i].Sub(committed))
		}
	}

	written := float64(took.TotalCount()) / window.until.Sub(window.from).Seconds()
	// Writers that could not keep up did not put the relay under the load it is named for.
	if written < .9*float64(rate) {
		return measured{"written_per_s": written, "p50_ms": math.NaN(), "p99_ms": math.NaN()}
	}

	return measured{
		"written_per_s": written, "p50_ms": took.Millis(50), "p99_ms": took.Millis(99),
	}
}

// traffic writes and consumes, and returns the window.
func (s *relaySession) traffic(ctx context.Context, p pace, url string, at moments) (window span, err error) {
	client, err := rig.Consumer(s.topic.brokers, s.topic.name)
	if err != nil {
		return window, err
	}
	defer client.Close()

	// A lost event must end the benchmark with an error.
	ctx, cancel := context.WithTimeoutCause(ctx, steadyWarm+s.window()+lateness, errMissing)
	defer cancel()

	// One event goes through all of it: now the relay leads, and the consumer has its partitions.
	if err := fill(ctx, url, p.table, 0, 1); err != nil {
		return window, err
	}
	if err := consume(ctx, client, at.consumed, 1); err != nil {
		return window, err
	}

	window.from = time.Now().Add(steadyWarm)
	window.until = window.from.Add(s.window())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return consume(ctx, client, at.consumed, len(at.consumed)-1) })
	for w := range writers {
		g.Go(func() error { return p.write(ctx, url, w, window, at.committed) })
	}
	if p.hold {
		g.Go(func() error { return hold(ctx, url, p.table, window, int64(len(at.consumed)-1)) })
	}
	return window, g.Wait()
}

var errMissing = fmt.Errorf("not all events arrived within %s", lateness)

// consume returns when so many new events have come.
func consume(ctx context.Context, client *kgo.Client, consumed []time.Time, missing int) error {
	for missing > 0 {
		fetches := client.PollFetches(ctx)
		now := time.Now()
		if err := errors.Join(context.Cause(ctx), fetches.Err()); err != nil {
			return fmt.Errorf("consume, %d events to come: %w", missing, err)
		}

		fetches.EachRecord(func(r *kgo.Record) {
			n := numberOf(r.Value)
			if n < 0 || n >= len(consumed) || !consumed[n].IsZero() {
				return // strange or repeated: counted when the topic is scanned
			}

			consumed[n] = now
			missing--
		})
	}
	return nil
}

// write commits one writer's events when they are due, and notes when the commit returned.
func (p pace) write(ctx context.Context, url string, writer int, window span, committed []time.Time) error {
	conn, err := rig.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	numbers := make([]int64, p.each)
	between := time.Duration(p.each) * time.Second / time.Duration(p.rate) // of all writers' transactions
	for i := range p.transactions(window.until.Sub(window.from)) {
		rig.Wait(ctx, window.from.Add(time.Duration(i*writers+writer)*between-steadyWarm))
		for j := range numbers {
			numbers[j] = int64(numberFor(writer, i*p.each+j))
		}
		if err := insert(ctx, conn, p.table, numbers, nil); err != nil {
			return err
		}

		// The clock of these events begins when COMMIT has returned.
		now := time.Now()
		for _, n := range numbers {
			committed[n] = now
		}
	}

	return nil
}

// numberFor numbers the events of a writer: from 1, and so that no other writer has events of the
// same aggregate.
func numberFor(writer, i int) int { return 1 + i*writers + writer }

// hold writes an event of another aggregate when the window begins, and commits when it ends.
func hold(ctx context.Context, url, table string, window span, number int64) error {
	conn, err := rig.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	aggregate := "held"
	rig.Wait(ctx, window.from)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		err := insert(ctx, tx.Conn(), table, []int64{number}, &aggregate)
		rig.Wait(ctx, window.until)
		return err
	})
}

const (
	idleSettle  = 2 * time.Second // a relay that has just sent something asks more often
	idleWindows = 3               // the median leaves out what the server writes once by itself
)

// idle measures a relay that leads and has nothing to send.
func (b *relayBench) idle(ctx context.Context) error {
	database, drop, err := b.fresh(ctx)
	if err != nil {
		return err
	}
	defer drop()

	window := min(b.window(), 4*time.Second)
	return b.session(ctx, ours, database, func(s *relaySession) (int, error) {
		// One event, and it leads.
		if err := fill(ctx, b.owner(database), ourTable, 0, 1); err != nil {
			return 0, err
		}

		if _, err := s.topic.await(ctx, 1); err != nil {
			return 0, err
		}

		rig.Wait(ctx, time.Now().Add(idleSettle))

		for range idleWindows {
			spent, err := b.cost(ctx, s.relay, func() error {
				rig.Wait(ctx, time.Now().Add(window))
				return nil
			})
			if err != nil {
				return 0, err
			}

			b.figures.add("idle", measured{
				"cpu": spent.program / spent.seconds, "postgres_cpu": spent.postgres / spent.seconds,
				"wal_bytes": spent.wal,
			}, "")
		}
		return 1, nil
	})
}

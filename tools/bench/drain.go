package main

import (
	"context"
	"fmt"
	"time"
)

// drained is what emptying an outbox took.
type drained struct {
	perSecond float64
	relay     float64 // CPU of the relay for 1,000 events, in ms
	postgres  float64
	wal       float64 // bytes an event
	dead      float64 // rows
	peak      float64 // memory of the relay, MiB
}

func (d drained) cpu() float64 { return d.relay + d.postgres }

// drain measures one relay from the moment it says that it has started until a read_committed reader could read all of the events.
func (b *relayBench) drain(ctx context.Context, c contender, events int) (m drained, err error) {
	conn, err := connect(ctx, b.drained.owner)
	if err != nil {
		return m, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `CHECKPOINT`); err != nil {
		return m, fmt.Errorf("checkpoint: %w", err)
	}
	deadBefore, err := touched(ctx, conn, c.table)
	if err != nil {
		return m, err
	}
	var wal, walAfter int64
	if err := conn.QueryRow(ctx, walWritten).Scan(&wal); err != nil {
		return m, fmt.Errorf("read the position of the log: %w", err)
	}
	db, err := b.server.time()
	if err != nil {
		return m, err
	}
	thousands := float64(events) / 1000
	_, err = b.session(ctx, c, b.drained, func(s *relaySession) (int, error) {
		own, err := processTime(s.relay.Pid(), false) // without what its start took
		if err != nil {
			return 0, err
		}
		complete, err := s.topic.await(ctx, events, s.relay)
		if err != nil {
			return 0, err
		}
		m.perSecond = float64(events) / complete.Sub(s.started).Seconds()
		ownAfter, err := processTime(s.relay.Pid(), false)
		if err != nil {
			return 0, err
		}
		dbAfter, err := b.server.time()
		if err != nil {
			return 0, err
		}
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		m.relay, m.postgres = ms(ownAfter-own)/thousands, ms(dbAfter-db)/thousands
		if err := conn.QueryRow(ctx, walWritten).Scan(&walAfter); err != nil {
			return 0, fmt.Errorf("read the position of the log: %w", err)
		}
		m.wal = float64(walAfter-wal) / float64(events)
		m.peak, err = peakMemory(s.relay.Pid())
		return events, err
	})
	if err != nil {
		return m, fmt.Errorf("drain %d events, %s: %w", events, c, err)
	}
	dead, err := touched(ctx, conn, c.table)
	m.dead = float64(dead - deadBefore)
	return m, err
}

// size is that of a drain, and what the names of its figures end in.
type size struct {
	events int
	suffix string
}

func (o relayOptions) sizes() []size {
	if o.many == 0 {
		return []size{{o.few, ""}}
	}
	return []size{{o.few, "_few"}, {o.many, ""}}
}

// drains measures all there is to drain. What is compared is measured one right after the other, in changing order.
func (b *relayBench) drains(ctx context.Context) error {
	filled := 0
	grow := func(events int) error {
		b.say("filling our outbox up to %d events of %d bytes", events, payloadBytes)
		err := fill(ctx, b.drained.owner, ourTable, filled, events)
		filled = events
		return err
	}
	for i, size := range b.sizes() {
		if err := grow(size.events); err != nil {
			return err
		}
		if i == 0 {
			if err := b.warmUp(ctx, size.events); err != nil {
				return err
			}
		}
		for round := range b.rounds {
			if err := b.drainRound(ctx, round, size); err != nil {
				return err
			}
		}
	}
	if b.backlog == 0 {
		return nil
	}
	if err := grow(b.backlog); err != nil {
		return err
	}
	m, err := b.drain(ctx, b.ours(), b.backlog)
	if err != nil {
		return err
	}
	b.say("backlog of %d: %.0f events/s, at most %.0f MiB of memory", b.backlog, m.perSecond, m.peak)
	b.figures.add("drain_per_s_backlog", m.perSecond)
	b.figures.add("rss_mib", m.peak)
	return nil
}

// warmUp drains without a figure. In a new broker Java compiles for the first and makes the topic of transactions for the first of these.
func (b *relayBench) warmUp(ctx context.Context, events int) error {
	all := []contender{b.ours()}
	if b.delivery == bothDeliveries {
		all = append(all, exactlyOnceContender())
	}
	for _, c := range all {
		if _, err := b.drain(ctx, c, events); err != nil {
			return err
		}
	}
	return nil
}

func (b *relayBench) drainRound(ctx context.Context, round int, size size) error {
	var ours, theirs drained
	measureOurs := func() (err error) {
		ours, err = b.drain(ctx, b.ours(), size.events)
		return err
	}
	measureTheirs := func() (err error) {
		n := min(b.tutorialEvents, size.events)
		if err := fill(ctx, b.drained.owner, tutorialTable, 0, n); err != nil {
			return err
		}
		theirs, err = b.drain(ctx, tutorialContender(), n)
		return err
	}
	order := []func() error{measureOurs, measureTheirs}
	if round%2 == 1 {
		order[0], order[1] = order[1], order[0]
	}
	for _, measure := range order {
		if err := measure(); err != nil {
			return err
		}
	}
	b.say("round %d, %d events: %.0f events/s, tutorial %.0f", round+1, size.events, ours.perSecond, theirs.perSecond)
	b.figures.compareDrains(size.suffix, ours, theirs)
	if b.delivery != bothDeliveries {
		return nil
	}
	once, err := b.drain(ctx, exactlyOnceContender(), size.events)
	if err != nil {
		return err
	}
	b.say("round %d, %d events: exactly once %.0f events/s", round+1, size.events, once.perSecond)
	b.figures.add("exactly_once_per_s"+size.suffix, once.perSecond)
	b.figures.add("exactly_once_ratio"+size.suffix, once.perSecond/ours.perSecond)
	return nil
}

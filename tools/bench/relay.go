package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/tools/rig"
)

// relayBench is one run of relay.
type relayBench struct {
	*bench
	broker  testenv.Server
	drained string // database whose outboxes are drained
	id      string // in the names of this run's topics
	runs    int    // relays started so far
	total   counts // of all topics of our relay
}

type counts struct{ missing, outOfOrder, duplicates int }

// contender is a relay that is measured.
type contender struct {
	name     string // its figures begin with it
	program  string
	table    string // its outbox
	delivery string // RELAY_DELIVERY; empty: it has none
}

var (
	ours        = contender{"ours", "relay", ourTable, "at-least-once"}
	exactlyOnce = contender{"exactly_once", "relay", ourTable, "exactly-once"}
	tutorial    = contender{"tutorial", tutorialName, tutorialTable, ""}
)

// relay is the benchmark from top to bottom.
func relay(ctx context.Context, o options, stdout io.Writer) (err error) {
	started, err := start(ctx, o, stdout, "relay")
	defer func() { err = errors.Join(err, started.stop()) }()
	if err != nil {
		return err
	}

	b := &relayBench{bench: started, id: uuid.NewString()[:8]}
	if err := b.open(ctx); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, b.broker.Stop(ctx))
	}()

	for _, phase := range []func(context.Context) error{b.drains, b.steadies, b.idle} {
		if err := phase(ctx); err != nil {
			return err
		}
	}

	b.report()
	if b.smoke && b.total.duplicates > 0 {
		return fmt.Errorf("no result: %d duplicates, and nothing was killed", b.total.duplicates)
	}

	return nil
}

// open starts the broker, makes both outboxes in the database that is copied, and gives this
// program the name under which it is the tutorial relay.
func (b *relayBench) open(ctx context.Context) error {
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(b.dir, tutorialName))
	}
	if err != nil {
		return fmt.Errorf("make the tutorial relay: %w", err)
	}

	// A relay of a new name reads the outbox from its beginning, so one database serves all drains.
	err = rig.Execute(ctx, b.owner(template), payloadFunction, tutorialSchema, `VACUUM ANALYZE`)
	if err != nil {
		return err
	}

	if b.drained, _, err = b.fresh(ctx); err != nil {
		return err
	}

	getenv := os.Getenv
	if b.kfake {
		getenv = func(string) string { return "" }
	}
	if b.broker, err = rig.Broker(ctx, getenv, !b.kfake, b.Say); err != nil {
		return err
	}

	b.machine = b.broker.Name + "; " + b.machine
	b.Say("%s", b.machine)
	return nil
}

// relaySession is one relay at work, on a topic of its own.
type relaySession struct {
	*relayBench
	relay   *process.Process
	started time.Time
	topic   *topic
}

// session starts a relay, lets do measure, stops the relay and counts what is in the topic: without
// that, what was measured is no result. do returns how many events there must be.
func (b *relayBench) session(
	ctx context.Context, c contender, database string, do func(*relaySession) (events int, err error),
) (err error) {
	b.runs++
	name := fmt.Sprintf("bench-%s-%d", b.id, b.runs)
	s := &relaySession{relayBench: b}
	if s.topic, err = makeTopic(ctx, strings.Split(b.broker.Address, ","), name+"."); err != nil {
		return err
	}
	defer s.topic.remove(context.WithoutCancel(ctx))

	env := []string{"KAFKA_BROKERS=" + b.broker.Address, "TOPIC_PREFIX=" + name + "."}
	if c.delivery == "" {
		env = append(env, "DATABASE_URL="+b.owner(database))
	} else {
		env = append(env, "DATABASE_URL="+b.postgres.URL("relay", database), "RELAY_NAME="+name,
			"RELAY_DELIVERY="+c.delivery)
		env = append(env, b.variables...)
	}
	if s.relay, err = process.Start(ctx, b.dir, c.program, env...); err != nil {
		return err
	}

	s.started = time.Now()
	defer s.relay.Stop()

	events, err := do(s)
	if err != nil {
		s.relay.Stop()
		return errors.Join(err, s.relay.Err())
	}

	// The figure counts only if the topic has what was committed.
	s.relay.Stop()
	count, err := s.topic.scan(ctx, events)
	if err != nil {
		return err
	}

	if c.delivery == "" {
		b.figures.add(c.name, measured{
			"duplicates": float64(count.duplicates), "out_of_order": float64(count.outOfOrder),
		}, "")
	} else {
		b.total.missing += count.missing()
		b.total.outOfOrder += count.outOfOrder
		b.total.duplicates += count.duplicates
	}
	return count.err(c.delivery)
}

// drain measures one relay from the moment it says that it has started until a read_committed
// reader could read all of the events.
func (b *relayBench) drain(ctx context.Context, c contender, events int) (m measured, err error) {
	if err := rig.Execute(ctx, b.owner("postgres"), `CHECKPOINT`); err != nil {
		return nil, err
	}

	deadBefore, err := deadRows(ctx, b.owner(b.drained), c.table)
	if err != nil {
		return nil, err
	}

	var complete time.Duration
	var drained cost // without the relay's start, which what Postgres spends includes
	measure := func(s *relaySession) (int, error) {
		drained, err = b.cost(ctx, s.relay, func() error {
			full, err := s.topic.await(ctx, events)
			complete = full.Sub(s.started)
			return err
		})
		return events, err
	}
	all, err := b.cost(ctx, nil, func() error { return b.session(ctx, c, b.drained, measure) })
	if err != nil {
		return nil, err
	}

	n := float64(events)
	m = measured{
		"per_s": n / complete.Seconds(), "rss_mib": drained.peak, "wal_bytes": all.wal / n,
		// Of 1,000 events.
		"relay_cpu_ms": 1e6 * drained.program / n, "postgres_cpu_ms": 1e6 * all.postgres / n,
		"cpu_ms": 1e6 * (drained.program + all.postgres) / n,
	}

	// The relay's sessions have ended, so the count is exact.
	dead, err := deadRows(ctx, b.owner(b.drained), c.table)
	m["dead_rows"] = float64(dead - deadBefore)
	b.Say("%d events, %s: %.0f events/s", events, c.name, m["per_s"])
	return m, err
}

// drainage is a size at which relays are drained, and what the names of its figures end in.
type drainage struct {
	suffix         string
	events, rounds int
	relays         []contender
}

func (o options) drainages() []drainage {
	all := []contender{tutorial, ours, exactlyOnce}
	list := []drainage{
		{"_warmup", o.few, 1, all[1:]}, // on a fresh broker the first drain pays for warm-up
		{"_few", o.few, o.rounds, all}, {"", o.many, o.rounds, all},
		{"_backlog", o.backlog, 1, []contender{ours}},
	}
	if o.many == 0 {
		list[1].suffix = ""
	}
	return slices.DeleteFunc(list, func(d drainage) bool { return d.events == 0 })
}

// drains measures all there is to drain: what is compared one right after the other, in changing
// order.
func (b *relayBench) drains(ctx context.Context) error {
	filled := 0
	for _, d := range b.drainages() {
		b.Say("filling our outbox up to %d events of %d bytes", d.events, payloadBytes)
		if err := fill(ctx, b.owner(b.drained), ourTable, filled, d.events); err != nil {
			return err
		}

		filled = d.events

		// In changing order, so that none is always the first after a pause.
		for range d.rounds {
			for _, c := range d.relays {
				events := d.events
				if c == tutorial {
					events = min(b.tutorial, events)
					if err := fill(ctx, b.owner(b.drained), c.table, 0, events); err != nil {
						return err
					}
				}

				m, err := b.drain(ctx, c, events)
				if err != nil {
					return fmt.Errorf("drain %d events, %s: %w", events, c.name, err)
				}

				b.figures.add(c.name, m, d.suffix)
			}
			slices.Reverse(d.relays)
		}
	}

	return nil
}

// report prints the tables and, as the last line, the JSON.
func (b *relayBench) report() {
	average := loadAverage()
	fmt.Fprintf(b, "\n%s, after: %s\n", b.machine, average)
	fmt.Fprintf(b, "events of %d bytes, %d aggregates, %d partitions, %d rounds, traffic of %d s: "+
		"500/s in transactions of one event, 5,000/s in transactions of ten %s\n", payloadBytes,
		aggregates, topicPartitions, b.rounds, b.seconds, strings.Join(b.variables, " "))
	fmt.Fprintf(b, "\ntopics read from their beginning, ours: %d missing, %d out of order, %d duplicates\n",
		b.total.missing, b.total.outOfOrder, b.total.duplicates)

	members := map[string]any{
		"missing": b.total.missing, "out_of_order": b.total.outOfOrder,
		"duplicates": b.total.duplicates, "rounds": b.rounds, "broker": b.broker.Name,
		"events": max(b.few, b.many), "load_average": average,
	}
	for _, d := range b.drainages() {
		if len(d.relays) == 3 {
			fmt.Fprintf(b, "\ndrain of %d events (tutorial: %d)\n", d.events, min(b.tutorial, d.events))
			b.figures.show(b, drainTable, d.suffix, members)
		}
	}

	b.figures.show(b, relayTable, "", members)
	writeJSON(b, members)
}

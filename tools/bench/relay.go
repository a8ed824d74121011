package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// relayBench is one run of relay.
type relayBench struct {
	relayOptions
	progress
	dir     string // programs and logs
	server  *server
	broker  testenv.Server
	drained database // whose outboxes are filled with what is drained; a relay of a new name begins at their beginning
	id      string   // in the names of this run's topics
	runs    int      // relays started so far
	figures figures
	counts  counts
}

// counts of all topics of our relay.
type counts struct{ missing, outOfOrder, duplicates int }

// contender is a relay that is measured.
type contender struct {
	program  string
	table    string // its outbox
	delivery string // RELAY_DELIVERY; empty: it has none
}

func (c contender) String() string {
	if c.delivery == exactlyOnce {
		return "ours, exactly once"
	} else if c.delivery == "" {
		return "tutorial"
	}
	return "ours"
}

func tutorialContender() contender { return contender{program: tutorialName, table: tutorialTable} }

// relay is the benchmark from top to bottom.
func relay(ctx context.Context, o relayOptions, stdout io.Writer, getenv func(string) string) (err error) {
	b := &relayBench{relayOptions: o, progress: progress{stdout, time.Now()}, figures: figures{}, id: uuid.NewString()[:8]}
	if b.dir, err = os.MkdirTemp("", "oncepay-bench-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.say("building relay")
	if err := b.build(ctx); err != nil {
		return err
	}
	b.say("starting Kafka and Postgres")
	if b.broker, err = b.openBroker(ctx, getenv); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, b.broker.Stop(ctx))
	}()
	b.server = &server{dir: b.dir}
	defer func() { err = errors.Join(err, b.server.close()) }()
	if err := b.open(ctx); err != nil {
		return err
	}
	machine, err := b.server.machine(ctx)
	if err != nil {
		return err
	}
	machine = fmt.Sprintf("Kafka: %s; %s, %s", b.broker.Name, machine, b.server.own.Origin())
	b.say("%s", machine)

	for _, phase := range []func(context.Context) error{b.drains, b.steadies, b.idle} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	b.report(machine)
	if b.smoke && b.counts.duplicates > 0 {
		return fmt.Errorf("no result: %d duplicates, and nothing was killed", b.counts.duplicates)
	}
	return nil
}

// build makes our relay, and gives this program a second name, under which it is the tutorial relay.
func (b *relayBench) build(ctx context.Context) error {
	if err := process.Build(ctx, b.dir, nil, "relay"); err != nil {
		return err
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(b.dir, tutorialName))
	}
	if err != nil {
		return fmt.Errorf("make the tutorial relay: %w", err)
	}
	return nil
}

// open starts Postgres with both outboxes in the database that is copied.
func (b *relayBench) open(ctx context.Context) (err error) {
	if err := b.server.start(ctx); err != nil {
		return err
	}
	if err := b.server.execute(ctx, b.server.own.URL("postgres", template), payloadFunction, tutorialSchema, `VACUUM ANALYZE`); err != nil {
		return err
	}
	b.drained, err = b.server.fresh(ctx)
	return err
}

// ours is our relay as the flags want it.
func (b *relayBench) ours() contender {
	if b.delivery == exactlyOnce {
		return exactlyOnceContender()
	}
	return contender{program: "relay", table: ourTable, delivery: atLeastOnce}
}

func exactlyOnceContender() contender {
	return contender{program: "relay", table: ourTable, delivery: exactlyOnce}
}

// relaySession is one relay at work, on a topic of its own.
type relaySession struct {
	b       *relayBench
	relay   *process.Process
	started time.Time
	topic   *topic
	conn    *pgx.Conn // as owner
}

// session starts a relay, lets do measure, stops the relay and counts what is in the topic: without that, what was measured is no result.
// It returns what it counted.
func (b *relayBench) session(ctx context.Context, c contender, d database, do func(*relaySession) (events int, err error)) (count *tally, err error) {
	b.runs++
	name := fmt.Sprintf("bench-%s-%d", b.id, b.runs)
	brokers := strings.Split(b.broker.Address, ",")
	s := &relaySession{b: b}
	if s.topic, err = makeTopic(ctx, brokers, name+"."); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.topic.remove(context.WithoutCancel(ctx))) }()
	if s.conn, err = connect(ctx, d.owner); err != nil {
		return nil, err
	}
	defer s.conn.Close(context.WithoutCancel(ctx))
	env := []string{"KAFKA_BROKERS=" + b.broker.Address, "TOPIC_PREFIX=" + name + "."}
	if c.delivery == "" {
		env = append(env, "DATABASE_URL="+d.owner)
	} else {
		env = append(env, "DATABASE_URL="+b.server.own.URL("relay", d.name), "RELAY_NAME="+name, "RELAY_DELIVERY="+c.delivery)
		env = append(env, b.variables...)
	}
	if s.relay, err = process.Start(ctx, b.dir, c.program, env...); err != nil {
		return nil, err
	}
	s.started = time.Now()
	defer s.relay.Stop()
	events, err := do(s)
	if err != nil {
		return nil, err
	}
	s.relay.Stop()
	if count, err = s.topic.scan(ctx, events); err != nil {
		return nil, err
	}
	if c.delivery != "" {
		b.counts.missing += count.missing()
		b.counts.outOfOrder += count.outOfOrder
		b.counts.duplicates += count.duplicates
	} else {
		b.figures.add("tutorial_duplicates", float64(count.duplicates))
		b.figures.add("tutorial_out_of_order", float64(count.outOfOrder))
	}
	if err := count.err(c.delivery != ""); err != nil {
		return nil, err
	}
	if c.delivery == exactlyOnce && count.outside > 0 {
		return nil, errNoTransaction
	}
	return count, nil
}

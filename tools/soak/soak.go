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
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// soaking is one run.
type soaking struct {
	options
	rig.Progress
	dir string

	cluster *cluster
	brokers []string
	prefix  string // of this run's topics: a broker may hold others

	api       string // where it serves
	instances []*instance
	load      *traffic.Load
	tail      *tail
	pin       *pin

	kills, promotions int
}

// soak is one run from top to bottom.
func soak(ctx context.Context, o options, stdout io.Writer) (err error) {
	s := &soaking{
		options: o, Progress: rig.NewProgress(stdout),
		prefix: "soak-" + uuid.NewString()[:8] + ".", tail: &tail{},
	}
	if s.dir, err = os.MkdirTemp("", "oncepay-soak-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}

	// As root we run Postgres as an unprivileged user, who must be able to read its files.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	defer func() { err = s.tidy(err) }()

	s.Say("building api, relay, consumer, worker and oncepay")
	err = process.Build(ctx, s.dir, []string{"-ldflags=-s -w"}, "api", "relay", "consumer", "worker", "oncepay")
	if err != nil {
		return err
	}

	if s.cluster, err = startCluster(ctx, s.dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.cluster.stop()) }()

	s.Say("Postgres %s runs, with a synchronous standby (%s)", s.cluster.primary.Version(),
		s.cluster.primary.Origin())

	kafka, err := rig.Broker(ctx, os.Getenv, false, s.Say)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kafka.Stop(context.WithoutCancel(ctx))) }()
	s.brokers = strings.Split(kafka.Address, ",")
	s.Say("%s", kafka.Name)

	// Stop the programs before the servers: deferred calls run in reverse.
	running, stop := context.WithCancel(ctx)
	g, running := errgroup.WithContext(running)
	defer func() {
		stop()
		err = errors.Join(err, g.Wait())
	}()
	if err := s.start(running, g); err != nil {
		return err
	}

	if err := s.traffic(ctx); err != nil {
		return errors.Join(err, s.needed())
	}
	return s.count(ctx)
}

// start runs the programs, which all know both servers.
func (s *soaking) start(ctx context.Context, g *errgroup.Group) error {
	kafka := []string{"KAFKA_BROKERS=" + strings.Join(s.brokers, ","), "TOPIC_PREFIX=" + s.prefix}
	delivery := "RELAY_DELIVERY=at-least-once"
	if s.exactlyOnce {
		delivery = "RELAY_DELIVERY=exactly-once"
	}

	database := func(role string) string { return "DATABASE_URL=" + s.cluster.url(role) }
	relay := append([]string{database("relay"), delivery}, kafka...)

	// Each program must be up before the next one starts.
	for _, p := range []struct {
		program, name string
		env           []string
	}{
		{"relay", "relay-1", relay},
		{"relay", "relay-2", relay},
		{"consumer", "consumer-1", append([]string{database("consumer")}, kafka...)},
		{"worker", "worker-1", []string{database("worker"), "WORKER_PARTS=expiry"}},
		{"api", "api-1", []string{
			database("api_write"), "DATABASE_READ_URL=" + s.cluster.url("api_read"),
			"HTTP_ADDR=127.0.0.1:0", "AUTHORIZATION_MIN=1s",
		}},
	} {
		i, err := newInstance(s.dir, p.program, p.name, p.env...)
		if err != nil {
			return err
		}
		s.instances = append(s.instances, i)

		g.Go(func() error { i.run(ctx, p.program); return nil })
		runs := func(context.Context) bool {
			process := i.process.Load()
			if process != nil {
				s.api = process.Addr // the last one is the API
			}
			return process != nil
		}
		if err := rig.Until(ctx, time.Minute, p.name+" runs", runs); err != nil {
			return fmt.Errorf("%w:\n%s", err, strings.Join(i.findings(), "\n"))
		}
	}
	s.Say("api, consumer, worker and two relays run")
	return nil
}

func (s *soaking) relays() []*instance { return s.instances[:2] }

// traffic applies load and faults. It returns when every request has its answer.
func (s *soaking) traffic(ctx context.Context) (err error) {
	// Two clients share the load.
	seeds := make([]traffic.Seed, 2)
	for n := range seeds {
		args := traffic.SeedArgs(fmt.Sprintf("shop-%d", n))
		if seeds[n], err = rig.Seed(ctx, s.dir, s.cluster.owner(), args); err != nil {
			return err
		}
	}

	if s.load, err = traffic.New(s.dir, "http://"+s.api, seeds); err != nil {
		return err
	}
	defer s.load.History.Close()

	if s.pin, err = holdSnapshot(ctx, s.cluster.owner()); err != nil {
		return err
	}

	begun := time.Now()
	// Latencies count only in these windows, which no fault touches.
	s.tail.windows = []*window{
		newWindow("beginning", begun, s.length, .03, .1),
		newWindow("before the promotion", begun, s.length, .45, .5),
		newWindow("end", begun, s.length, .92, 1),
	}

	sending, stop := context.WithDeadline(ctx, begun.Add(s.length))
	defer stop()

	g, all := errgroup.WithContext(ctx)
	// The tail follows until the last request has its answer.
	following, enough := context.WithCancel(all)
	g.Go(func() error { return s.tail.run(following, s.brokers, s.prefix+"payments") })
	g.Go(func() error {
		defer enough()
		s.load.Run(sending, all, s.rate)
		return nil
	})
	g.Go(func() error { return s.faults(all, begun) })
	g.Go(func() error { s.watch(sending); return nil })

	if err := g.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return s.load.History.Close()
}

// watch prints a progress line at intervals.
func (s *soaking) watch(ctx context.Context) {
	pause := min(s.length/10, 30*time.Second)
	for traffic.Pause(ctx, pause); ctx.Err() == nil; traffic.Pause(ctx, pause) {
		v, err := traffic.OpenView(ctx, s.cluster.owner(), s.brokers, statements.Consumer)
		if err != nil {
			continue // it is being promoted
		}

		if c, err := v.Count(ctx); err == nil {
			s.Say("%d payments, %d held, backlog %d, lag %d", c.Payments, c.Held, c.Backlog, c.Lag())
		}
		v.Close()
	}
}

// tidy removes everything, but keeps history and logs of a run that failed.
func (s *soaking) tidy(err error) error {
	if err == nil {
		return os.RemoveAll(s.dir)
	}

	// Data directories and programs are large and tell nothing.
	for _, data := range []string{
		"primary/data", "standby/data", "api", "relay", "consumer", "worker", "oncepay",
	} {
		_ = os.RemoveAll(filepath.Join(s.dir, data))
	}

	return fmt.Errorf("%w\nlogs and history are kept in %s", err, s.dir)
}

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/tools/rig"
)

const pspUsage = `Usage: soak psp [flags]

Starts Postgres, a broker, api, relay, consumer, worker and fakepsp, and sends payments by card, of
which every tenth is refunded. Meanwhile fakepsp loses 5 % of its replies after it has executed,
answers 500 to 5 %, half of them executed, delays 1 % by 30 s, and sends its webhooks twice and in the
wrong order; the worker gets SIGKILL every 3 s and fakepsp every 10 s; the broker is away for 20 s, and
Postgres' connections are cut every 7 s.

When the load ends, so do the faults. Then every payment must end within 60 s, and the PSP's books,
our ledger, the topics and the statements must agree: nobody charged twice, or without a completed
payment, and nothing completed without a charge.

Examples:
  go run ./tools/soak psp
  go run ./tools/soak psp -payments 2000 -rate 100

Flags:
`

type pspOptions struct {
	payments int
	rate     int
	slowFor  time.Duration
}

// settleMax is for how long payments may be processing after the last fault.
const settleMax = 2 * time.Minute

func pspCommand(ctx context.Context, args []string, stdout io.Writer) error {
	var o pspOptions
	f := rig.NewFlags("soak psp")
	f.Int(&o.payments, "payments", 20_000, 100, 1_000_000, "payments by card")
	f.Int(&o.rate, "rate", 200, 10, 10_000, "payments a second")
	f.DurationVar(&o.slowFor, "slow-for", 30*time.Second, "`duration` of a slow call")

	if err := f.Parse(pspUsage, args, stdout); err != nil {
		return err
	}
	return storm(ctx, o, stdout)
}

// storming is one run.
type storming struct {
	pspOptions
	rig.Progress
	dir string

	postgres *embedded.Postgres
	kafka    *embedded.Kafka

	api, psp  string // where they serve
	secret    string // of the webhooks
	instances map[string]*instance
	db        *pgxpool.Pool // as the owner

	load  pspLoad
	mu    sync.Mutex // of kills: each program has its own killer
	kills map[string]int
	cuts  int64 // connections
}

const pspKey = "psp_secret"

// storm is one run from top to bottom.
func storm(ctx context.Context, o pspOptions, stdout io.Writer) (err error) {
	s := &storming{
		pspOptions: o, Progress: rig.NewProgress(stdout), kills: map[string]int{},
		instances: map[string]*instance{}, secret: "whsec_" + base64.StdEncoding.EncodeToString([]byte(uuid.NewString())),
	}
	if s.dir, err = os.MkdirTemp("", "oncepay-soak-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}

	// As root we run Postgres as an unprivileged user, who must be able to read its files.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	defer func() { err = s.tidy(err) }()

	s.Say("building api, relay, consumer, worker, fakepsp and oncepay")
	if err := process.Build(ctx, s.dir, []string{"-ldflags=-s -w"}, stormPrograms...); err != nil {
		return err
	}

	options := embedded.PostgresOptions{
		Dir: filepath.Join(s.dir, "primary"), Download: os.Getenv("EMBEDDED_POSTGRES") == "download",
	}
	if s.postgres, err = rig.Postgres(ctx, options, database); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.postgres.Stop(context.WithoutCancel(ctx))) }()
	if s.kafka, err = embedded.StartKafka(); err != nil {
		return err
	}
	defer s.kafka.Stop()
	s.Say("Postgres %s (%s); %s", s.postgres.Version(), s.postgres.Origin(), s.kafka.Origin())

	if s.db, err = pgxpool.New(ctx, s.url("postgres")); err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer s.db.Close()

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

	if err := s.blow(ctx); err != nil {
		return err
	}
	return s.settleAndCount(ctx)
}

var stormPrograms = []string{"api", "relay", "consumer", "worker", "fakepsp", "oncepay"}

func (s *storming) url(role string) string { return s.postgres.URL(role, database) }

// start runs the programs. Each must be up before the next one starts.
func (s *storming) start(ctx context.Context, g *errgroup.Group) error {
	// Both know where the other one is, so one address must be known before.
	var err error
	if s.api, err = process.FreeAddress(); err != nil {
		return err
	}
	if s.psp, err = process.FreeAddress(); err != nil {
		return err
	}

	brokers := "KAFKA_BROKERS=" + strings.Join(s.kafka.Brokers(), ",")
	db := func(role string) string { return "DATABASE_URL=" + s.url(role) }
	key, secret := "PSP_API_KEY="+pspKey, "PSP_WEBHOOK_SECRET="+s.secret

	for _, p := range []struct {
		name string
		env  []string
	}{
		{"fakepsp", append(s.faultFlags(), key, secret, "FAKEPSP_ADDR="+s.psp,
			"FAKEPSP_DIR="+filepath.Join(s.dir, "books"), "FAKEPSP_WEBHOOK_URL=http://"+s.api+"/webhooks/psp")},
		{"relay", []string{db("relay"), brokers}},
		{"consumer", []string{db("consumer"), brokers}},
		{"worker", []string{db("worker"), "PSP_URL=http://" + s.psp, key, "WORKER_PARTS=psp,expiry"}},
		{"api", []string{db("api_write"), "DATABASE_READ_URL=" + s.url("api_read"), "HTTP_ADDR=" + s.api, secret}},
	} {
		i, err := newInstance(s.dir, p.name, p.name+"-1", p.env...)
		if err != nil {
			return err
		}
		i.pause = 0
		s.instances[p.name] = i

		g.Go(func() error { i.run(ctx, p.name); return nil })
		runs := func(context.Context) bool { return i.process.Load() != nil }
		if err := rig.Until(ctx, time.Minute, p.name+" runs", runs); err != nil {
			return fmt.Errorf("%w:\n%s", err, strings.Join(i.findings(), "\n"))
		}
	}
	s.Say("api, relay, consumer, worker and fakepsp run")
	return nil
}

// tidy removes everything, but keeps logs and the PSP's books of a run that failed.
func (s *storming) tidy(err error) error {
	if err == nil {
		return os.RemoveAll(s.dir)
	}
	for _, data := range append([]string{"primary/data"}, stormPrograms...) {
		_ = os.RemoveAll(filepath.Join(s.dir, data))
	}
	return fmt.Errorf("%w\nlogs and the PSP's books are kept in %s", err, s.dir)
}

// orderID is a key that no other run has.
func orderID() string { return "order-" + uuid.NewString() }

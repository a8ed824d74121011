// Command demo runs the whole service on one machine with nothing installed but Go: Postgres and Kafka embedded, the real
// programs as child processes, a little traffic and one line a second. Ctrl-C drains and stops everything.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/child"
	"github.com/oncepay/oncepay/internal/embedded"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

const usage = `Usage: demo [flags]

Runs Postgres, Kafka, api, relay and consumer on free ports of this machine, sends them payments, and shows what happens.
Ctrl-C drains and stops everything; nothing is left behind. Postgres is taken from this machine, or fetched once.

Examples:
  go run ./cmd/demo
  go run ./cmd/demo -rate 100
  go run ./cmd/demo -for 30s

Flags:
`

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	rate := flags.Int("rate", 20, "requests a `second`, 1 to 1000")
	length := flags.Duration("for", 0, "`duration` after which it stops by itself; 0 = until Ctrl-C")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	case err == nil && (*rate < 1 || *rate > 1000):
		err = errors.New("-rate must be 1 to 1000")
	case err == nil && *length < 0:
		err = errors.New("-for must not be negative")
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		err = (&demo{out: stdout, rate: *rate, length: *length, begun: time.Now()}).run(ctx)
	}
	if err != nil {
		fmt.Fprintln(stderr, "demo: "+strings.ReplaceAll(err.Error(), "\n", "\ndemo: "))
		return 1
	}
	return 0
}

// demo is one run.
type demo struct {
	out    io.Writer
	rate   int
	length time.Duration
	begun  time.Time

	dir  string // binaries and logs, removed at the end
	url  func(role string) string
	seed seed
	api  string // base URL
}

const database = "oncepay"

// run is the demo from top to bottom; what it opens, the defer on the next line closes.
func (d *demo) run(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "oncepay-demo-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()

	d.say("building api, relay, consumer, migrate and oncepay")
	if err := child.Build(ctx, d.dir, []string{"-ldflags=-s -w"}, "api", "relay", "consumer", "migrate", "oncepay"); err != nil {
		return err
	}
	postgres, err := embedded.StartPostgres(ctx, embedded.PostgresOptions{
		Download: os.Getenv("EMBEDDED_POSTGRES") == "download",
		Log:      slog.New(slog.NewTextHandler(d.out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	defer d.stop("postgres", postgres.Stop)
	d.say("Postgres %s runs (%s)", postgres.Version(), postgres.Origin())
	kafka, err := embedded.StartKafka(ctx, embedded.KafkaOptions{})
	if err != nil {
		return err
	}
	defer kafka.Stop()
	d.say("Kafka runs (%s)", kafka.Origin())

	d.url = func(role string) string { return postgres.URL(role, database) }
	if err := d.prepare(ctx, postgres.URL("postgres", "postgres")); err != nil {
		return err
	}

	brokers := "KAFKA_BROKERS=" + strings.Join(kafka.Brokers(), ",")
	consumer, err := d.start(ctx, "consumer", "DATABASE_URL="+d.url("consumer"), brokers)
	if err != nil {
		return err
	}
	defer consumer.Stop()
	relay, err := d.start(ctx, "relay", "DATABASE_URL="+d.url("relay"), brokers)
	if err != nil {
		return err
	}
	defer relay.Stop()
	api, err := d.start(ctx, "api", "DATABASE_URL="+d.url("api_write"), "DATABASE_READ_URL="+d.url("api_read"), "HTTP_ADDR=127.0.0.1:0")
	if err != nil {
		return err
	}
	defer api.Stop()
	d.api = "http://" + api.Addr

	conn, err := pgx.Connect(ctx, d.url("postgres"))
	if err != nil {
		return fmt.Errorf("connect to the demo's database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	traffic := &traffic{api: d.api, seed: d.seed}
	if err := d.show(ctx, traffic, conn, api, relay, consumer); err != nil {
		return err
	}

	d.say("stopping: api first, then what it accepted is relayed and consumed")
	api.Stop()
	return d.drain(context.WithoutCancel(ctx), conn, traffic)
}

func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%4.0fs  %s\n", time.Since(d.begun).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) start(ctx context.Context, name string, env ...string) (*child.Process, error) {
	p, err := child.Start(ctx, d.dir, name, env...)
	if err == nil {
		d.say("%s runs", name)
	}
	return p, err
}

func (d *demo) stop(what string, stop func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := stop(ctx); err != nil {
		d.say("%s: %v", what, err)
	}
}

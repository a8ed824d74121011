// Command relay moves events from the outbox to Kafka. Run as many as you like: one leads, the
// others wait.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/kafkalogin"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/migrations"
)

func main() {
	os.Exit(program.Main(command, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

var command = program.Program{
	Name:  "relay",
	About: "relay reads the outbox of Postgres into Kafka, and keeps the daily partitions of outbox and idempotency keys.",
	Usage: config.Usage("relay"),
	Example: "  DATABASE_URL=postgres://relay:secret@localhost:5432/oncepay KAFKA_BROKERS=localhost:9092 relay\n" +
		"  relay dead-letters list\n" +
		"  relay resend --from-time 2026-03-01T12:00:00Z",
	Run:      run,
	Commands: []func(func(string) string) *cobra.Command{deadLetters.Command, resendCommand, adoptCommand},
	Probe: func(getenv func(string) string) (string, error) {
		cfg, err := config.LoadRelay(getenv)
		return cfg.AdminAddr, err
	},
}

// topics are the aggregate types of this service's events.
var topics = []string{"payments", "accounts", "webhook-endpoints"}

// batchesOfATransaction spreads the cost of a Kafka transaction, which is that of sending some two
// thousand events.
const batchesOfATransaction = 4

const exactlyOnce = "exactly-once"

// connections: for the relay, its upkeep, the probe, and one to spare.
const connections = 4

func run(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	cfg, err := config.LoadRelay(getenv)
	if err != nil {
		return err
	}

	if cfg.Delivery == exactlyOnce {
		cfg.Batch *= batchesOfATransaction
	}

	log := telemetry.Logger(stderr, cfg.LogLevel, cfg.LogFormat)
	slog.SetDefault(log)
	postgres.WarnPlainText(ctx, log, "DATABASE_URL", cfg.DatabaseURL)

	reg := telemetry.NewRegistry()
	stopTelemetry, err := telemetry.Start(ctx, "relay", reg, getenv)
	if err != nil {
		return err
	}
	defer stopTelemetry()
	metrics := telemetry.NewRelay(reg)

	producer, err := newProducer(cfg)
	if err != nil {
		return err
	}

	// Check database and broker together, so that one start reports everything that is wrong.
	var pool *pgxpool.Pool
	err = program.StartAll(ctx, func(ctx context.Context) (err error) {
		if pool, err = postgres.Open(ctx, cfg.DatabaseURL, "relay", connections, log); err != nil {
			return err
		}
		if err := migrations.Check(ctx, pool); err != nil {
			return err
		}
		return postgres.CheckLimits(ctx, pool, postgres.Need{Connections: connections}, log)
	}, producer.Ping)
	defer postgres.Close(pool)
	if err != nil {
		return err
	}

	telemetry.WatchPool(reg, "relay", pool.Stat)

	p := &probe{
		pool: pool, broker: producer.Ping, holder: relay.NewHolder(),
		stalls: &relay.Stalls{Relay: cfg.Name, Lease: cfg.Lease},
	}
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, p.ready)
	if err != nil {
		return err
	}
	admin.Detail = p.detail
	profiles, err := telemetry.ListenPprof(cfg.PprofAddr)
	if err != nil {
		return err
	}

	watch := observer{metrics, p, cfg.TopicPrefix}
	u := &upkeep{
		pool: pool, cfg: cfg, metrics: metrics, locks: telemetry.NewLocks(reg), log: log, probe: p,
		oldAfter: snapshotOld,
	}
	c := &copies{
		producer: producer, relay: cfg.Name, wanted: cfg.TopicMinInsync, metrics: metrics, log: log,
		said: map[string]kafka.Copies{},
	}
	r := &relay.Relay{
		DB: pool, Open: producer.Open, Name: cfg.Name, Lease: cfg.Lease, Batch: cfg.Batch, Log: log,
		Holder: p.holder,
		OnRead: metrics.Read, OnPublish: watch.published, OnLeader: metrics.Leader,
		OnError: watch.failed,
	}
	log.InfoContext(ctx, "relay started", "relay", cfg.Name, "topics", cfg.TopicPrefix+"*",
		"admin_addr", admin.Addr(), "pprof_addr", profiles.Addr())
	defer log.InfoContext(ctx, "relay stopped")

	// The first that fails stops the others.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return u.run(ctx) })
	g.Go(func() error { return c.run(ctx) })
	g.Go(func() error { return admin.Run(ctx) })
	g.Go(func() error { return profiles.Run(ctx) })
	return g.Wait()
}

// newProducer is for whatever sends events: each at the same place, in the same form.
func newProducer(cfg config.Relay) (kafka.Producer, error) {
	options, err := kafkalogin.Options(cfg.Kafka)
	if err != nil {
		return kafka.Producer{}, err
	}

	options = append(options, kafkalogin.Compression(cfg.Compression))
	return kafka.Producer{Brokers: cfg.Brokers, TopicPrefix: cfg.TopicPrefix, Topics: topics,
		Source: "/oncepay", ExactlyOnce: cfg.Delivery == exactlyOnce,
		Partitions: cfg.TopicPartitions, Replication: cfg.TopicReplication, MinInsync: cfg.TopicMinInsync,
		DrainOnPartitionChange: cfg.PartitionChange == "drain", Options: options}, nil
}

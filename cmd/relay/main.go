// Command relay moves events from the outbox to Kafka. Run as many as you like: one leads, the
// others wait.
package main

import (
	"context"
	"errors"
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
		"  relay dead-letters list",
	Run:      run,
	Commands: []func(func(string) string) *cobra.Command{deadLetters.Command},
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

func run(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	cfg, err := config.LoadRelay(getenv)
	if err != nil {
		return err
	}

	exactlyOnce := cfg.Delivery == "exactly-once"
	if exactlyOnce {
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

	options, err := kafkalogin.Options(cfg.Kafka)
	if err != nil {
		return err
	}

	options = append(options, kafkalogin.Compression(cfg.Compression))
	producer := kafka.Producer{Brokers: cfg.Brokers, TopicPrefix: cfg.TopicPrefix, Topics: topics,
		Source: "/oncepay", ExactlyOnce: exactlyOnce,
		DrainOnPartitionChange: cfg.PartitionChange == "drain", Options: options}

	// Check database and broker together, so that one start reports everything that is wrong.
	var pool *pgxpool.Pool
	err = program.StartAll(ctx, func(ctx context.Context) (err error) {
		if pool, err = postgres.Open(ctx, cfg.DatabaseURL, "relay", 4, log); err != nil {
			return err
		}
		return migrations.Check(ctx, pool)
	}, producer.Ping)
	defer postgres.Close(pool)
	if err != nil {
		return err
	}

	telemetry.WatchPool(reg, "relay", pool.Stat)

	// Ready means that this process reaches both ends, leader or not.
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, func(ctx context.Context) error {
		return errors.Join(pool.Ping(ctx), producer.Ping(ctx))
	})
	if err != nil {
		return err
	}

	watch := observer{metrics}
	u := &upkeep{pool: pool, cfg: cfg, metrics: metrics, log: log}
	r := &relay.Relay{
		DB: pool, Open: producer.Open, Name: cfg.Name, Lease: cfg.Lease, Batch: cfg.Batch, Log: log,
		OnRead: metrics.Read, OnPublish: watch.published, OnLeader: metrics.Leader,
		OnError: watch.failed,
	}
	log.InfoContext(ctx, "relay started", "relay", cfg.Name, "topics", cfg.TopicPrefix+"*",
		"admin_addr", admin.Addr())
	defer log.InfoContext(ctx, "relay stopped")

	// The first of the three that fails stops the others.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.Run(ctx) })
	g.Go(func() error { return u.run(ctx) })
	g.Go(func() error { return admin.Run(ctx) })
	return g.Wait()
}

// Command consumer keeps account statements from the events of payments. Run as many as you like:
// they share the partitions of the topics.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/kafkalogin"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/migrations"
)

func main() {
	os.Exit(program.Main(consumer, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

var consumer = program.Program{
	Name:  "consumer",
	About: "consumer reads the events of payments from Kafka and keeps account statements, each event counted once.",
	Usage: config.Usage("consumer"),
	Example: "  DATABASE_URL=postgres://consumer:secret@localhost:5432/oncepay KAFKA_BROKERS=localhost:9092 consumer\n" +
		"  consumer dead-letters list",
	Run:      run,
	Commands: []func(func(string) string) *cobra.Command{deadLetters.Command},
	Probe: func(getenv func(string) string) (string, error) {
		cfg, err := config.LoadConsumer(getenv)
		return cfg.AdminAddr, err
	},
}

// connections: for the events, the inbox's upkeep, the probe, and one to spare.
const connections = 4

// probeTimeout is shorter than the 3 s for which the command health waits.
const probeTimeout = 2 * time.Second

func run(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	cfg, err := config.LoadConsumer(getenv)
	if err != nil {
		return err
	}

	log := telemetry.Logger(stderr, cfg.LogLevel, cfg.LogFormat)
	slog.SetDefault(log)
	postgres.WarnPlainText(ctx, log, "DATABASE_URL", cfg.DatabaseURL)

	reg := telemetry.NewRegistry()
	stopTelemetry, err := telemetry.Start(ctx, "consumer", reg, getenv)
	if err != nil {
		return err
	}
	// Deferred first, so it runs last: spans of the shutdown are exported, too.
	defer stopTelemetry()
	metrics := telemetry.NewConsumer(reg)

	options, err := kafkalogin.Options(cfg.Kafka)
	if err != nil {
		return err
	}

	kafka := inbox.Kafka{
		Brokers: cfg.Brokers, Group: cfg.Group, Options: options,
		Topics: []string{cfg.TopicPrefix + "payments", cfg.TopicPrefix + "accounts"},
	}

	// Check database and broker together, so that one start reports everything that is wrong.
	var pool *pgxpool.Pool
	err = program.StartAll(ctx, func(ctx context.Context) (err error) {
		if pool, err = postgres.Open(ctx, cfg.DatabaseURL, "consumer", connections, log); err != nil {
			return err
		}
		if err := migrations.Check(ctx, pool); err != nil {
			return err
		}
		return postgres.CheckLimits(ctx, pool, postgres.Need{Connections: connections}, log)
	}, kafka.Ping)
	defer postgres.Close(pool)
	if err != nil {
		return err
	}

	telemetry.WatchPool(reg, "consumer", pool.Stat)

	c := &inbox.Consumer{
		DB: pool, Kafka: kafka, Name: statements.Consumer, Handle: statements.Handle,
		Log: log, Retention: cfg.InboxRetention,
		OnEvent: metrics.Event, OnLag: metrics.Lag, OnLetters: metrics.Letters,
		OnGap: metrics.Gap, OnHorizon: metrics.Horizon,
		OnStall: metrics.Stalled,
		Trace: func(ctx context.Context, e inbox.Event) (context.Context, func(error)) {
			return telemetry.Process(ctx, "consumer", cfg.Group, telemetry.Message{
				Headers: e.Headers, ID: e.ID.String(), Type: e.Type,
				Topic: e.Topic, Partition: e.Partition, Offset: e.Offset,
			})
		},
	}

	// Ready means that the database answers, the broker lets us consume, and what waits is done. The
	// process is live in any case: see inbox.Consumer.Ready.
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		err := pool.Ping(ctx)
		if err != nil {
			err = fmt.Errorf("database: %w", err)
		}
		return errors.Join(err, c.Ready(ctx))
	})
	if err != nil {
		return err
	}
	profiles, err := telemetry.ListenPprof(cfg.PprofAddr)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "consumer started", "group", cfg.Group, "topics", kafka.Topics,
		"admin_addr", admin.Addr(), "pprof_addr", profiles.Addr())
	defer log.InfoContext(ctx, "consumer stopped")

	// The first that fails stops the others.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return admin.Run(ctx) })
	g.Go(func() error { return profiles.Run(ctx) })
	return g.Wait()
}

// Command consumer keeps account statements from the events of payments. Run as many as you like:
// they share the partitions of the topics.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
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
		if pool, err = postgres.Open(ctx, cfg.DatabaseURL, "consumer", 4, log); err != nil {
			return err
		}
		return migrations.Check(ctx, pool)
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
		OnGap: metrics.Gap, OnHorizon: metrics.Horizon, Trace: span,
	}

	// Ready means that the database answers and the broker lets us consume.
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, func(ctx context.Context) error {
		if err := pool.Ping(ctx); err != nil {
			return fmt.Errorf("database: %w", err)
		}
		return c.Ready(ctx)
	})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "consumer started", "group", cfg.Group, "topics", kafka.Topics,
		"admin_addr", admin.Addr())
	defer log.InfoContext(ctx, "consumer stopped")

	// The first of the two that fails stops the other.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return admin.Run(ctx) })
	return g.Wait()
}

// span continues the trace of the request that caused the event.
func span(ctx context.Context, e inbox.Event) (context.Context, func(error)) {
	ctx = telemetry.FromHeaders(ctx, func(name string) string { return e.Headers[name] })
	ctx, s := otel.Tracer("consumer").Start(ctx, "consume event",
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String("event_id", e.ID.String()), attribute.String("event_type", e.Type),
			attribute.String("messaging.destination.name", e.Topic),
			attribute.Int64("messaging.kafka.offset", e.Offset)))

	return ctx, func(err error) {
		if err != nil {
			s.RecordError(err)
			s.SetStatus(codes.Error, "")
		}
		s.End()
	}
}

// Command consumer keeps account statements from the events of payments. Run as many as you like: they share the
// partitions of the topics.
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
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/inbox"
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
	Name:    "consumer",
	About:   "consumer reads the events of payments from Kafka and keeps account statements, each event counted once.",
	Usage:   config.Usage("consumer"),
	Example: "DATABASE_URL=postgres://consumer:secret@localhost:5432/oncepay KAFKA_BROKERS=localhost:9092 consumer",
	Run:     run,
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
	stopTracing, err := telemetry.Start(ctx, "consumer", getenv)
	if err != nil {
		return err
	}
	defer flush(ctx, stopTracing, log)
	reg := telemetry.NewRegistry()
	metrics := telemetry.NewConsumer(reg)

	kafka := inbox.Kafka{
		Brokers: cfg.Brokers, Group: cfg.Group,
		Topics: []string{cfg.TopicPrefix + "payments", cfg.TopicPrefix + "accounts"},
	}
	pool, err := connect(ctx, cfg, kafka, log)
	if err != nil {
		return err
	}
	defer pool.Close()
	telemetry.WatchPool(reg, "consumer", pool.Stat)

	c := &inbox.Consumer{
		DB: pool, Kafka: kafka, Name: statements.Consumer, Handle: statements.Handle, Log: log,
		OnEvent: metrics.Event, OnLag: metrics.Lag, Trace: span,
	}
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, func(ctx context.Context) error {
		if err := pool.Ping(ctx); err != nil {
			return fmt.Errorf("database: %w", err)
		}
		return c.Ready(ctx)
	})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "consumer started", "group", cfg.Group, "topics", kafka.Topics, "admin_addr", admin.Addr())
	defer log.InfoContext(ctx, "consumer stopped")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return admin.Run(ctx) })
	return g.Wait()
}

// connect opens the database and asks the broker once, side by side, and reports the problems of both: a program that
// cannot work is to say so at start. Later outages are waited out.
func connect(ctx context.Context, cfg config.Consumer, kafka inbox.Kafka, log *slog.Logger) (*pgxpool.Pool, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	broker := make(chan error, 1)
	go func() { broker <- kafka.Ping(ctx) }()
	pool, err := postgres.Open(ctx, cfg.DatabaseURL, "consumer", 4, log)
	if err == nil {
		err = migrations.Check(ctx, pool)
	}
	err = errors.Join(err, <-broker)
	if err != nil && pool != nil {
		pool.Close()
	}
	return pool, err
}

// span continues the trace of the request that caused the event.
func span(ctx context.Context, e inbox.Event) (context.Context, func(error)) {
	ctx = telemetry.FromHeaders(ctx, func(name string) string { return e.Headers[name] })
	ctx, s := otel.Tracer("consumer").Start(ctx, "consume event", trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String("event_id", e.ID.String()), attribute.String("event_type", e.Type),
			attribute.String("messaging.destination.name", e.Topic), attribute.Int64("messaging.kafka.offset", e.Offset)))
	return ctx, func(err error) {
		if err != nil {
			s.RecordError(err)
			s.SetStatus(codes.Error, "")
		}
		s.End()
	}
}

// flush sends the last spans.
func flush(ctx context.Context, stop func(context.Context) error, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if err := stop(ctx); err != nil {
		log.WarnContext(ctx, "last spans not sent", "error", err)
	}
}

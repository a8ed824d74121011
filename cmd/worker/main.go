// Command worker does what no request waits for: it charges and refunds cards at the payment service
// provider (PSP), releases the holds of authorizations whose time is over, and sends events to the
// webhook endpoints of tenants. Run as many as you like: they share the work.
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
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/migrations"
)

func main() {
	os.Exit(program.Main(worker, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

var worker = program.Program{
	Name: "worker",
	About: "worker charges and refunds cards at the PSP, releases the holds of authorizations whose time " +
		"is over, and sends events to the webhook endpoints of tenants.",
	Usage: config.Usage("worker"),
	Example: "  DATABASE_URL=postgres://worker:secret@localhost:5432/oncepay KAFKA_BROKERS=localhost:9092 worker\n" +
		"  worker dead-letters list",
	Run:      run,
	Commands: []func(func(string) string) *cobra.Command{deadLetters.Command},
	Probe: func(getenv func(string) string) (string, error) {
		cfg, err := config.LoadWorker(getenv)
		return cfg.AdminAddr, err
	},
}

// connections: of expiry, the claims and two committers of psp, two for the sender of webhooks, one
// each for its consumer and its upkeep, the two that measure, and the probe.
const connections = 12

func run(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	cfg, err := config.LoadWorker(getenv)
	if err != nil {
		return err
	}

	log := telemetry.Logger(stderr, cfg.LogLevel, cfg.LogFormat)
	slog.SetDefault(log)
	postgres.WarnPlainText(ctx, log, "DATABASE_URL", cfg.DatabaseURL)

	reg := telemetry.NewRegistry()
	stopTelemetry, err := telemetry.Start(ctx, "worker", reg, getenv)
	if err != nil {
		return err
	}
	defer stopTelemetry()
	metrics := telemetry.NewWorker(reg)

	// What the parts need from outside is checked together, so that one start reports all that is wrong.
	var sending *hooks
	ping := func(context.Context) error { return nil }
	if cfg.Does("webhooks") {
		if sending, err = newHooks(cfg, reg, log); err != nil {
			return err
		}
		ping = sending.kafka.Ping
	}

	var pool *pgxpool.Pool
	err = program.StartAll(ctx, func(ctx context.Context) (err error) {
		if pool, err = postgres.Open(ctx, cfg.DatabaseURL, "worker", connections, log); err != nil {
			return err
		}
		if err := migrations.Check(ctx, pool); err != nil {
			return err
		}
		return checkRole(ctx, pool, cfg, log)
	}, ping)
	defer postgres.Close(pool)
	if err != nil {
		return err
	}

	telemetry.WatchPool(reg, "worker", pool.Stat)

	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, func(ctx context.Context) error {
		if err := pool.Ping(ctx); err != nil || sending == nil {
			return err
		}
		return sending.consumer.Ready(ctx)
	})
	if err != nil {
		return err
	}

	locked := &locked{log: log}
	processor := &payments.Processor{DB: pool, OnHeld: locked.found}
	e := &expiry{
		expire: processor.ExpireBatch, interval: cfg.ExpiryInterval,
		locked: locked, metrics: metrics, log: log,
	}
	o := &overdue{db: pool, metrics: metrics}
	log.InfoContext(ctx, "worker started", "parts", cfg.Parts, "admin_addr", admin.Addr())
	defer log.InfoContext(ctx, "worker stopped")

	// The first part that fails stops the others.
	g, ctx := errgroup.WithContext(ctx)
	if cfg.Does("expiry") {
		g.Go(func() error { return e.run(ctx) })
	}
	if sending != nil {
		g.Go(func() error { return sending.run(ctx, pool) })
	}
	g.Go(func() error { return o.run(ctx) })
	if cfg.Does("psp") {
		pspMetrics := telemetry.NewPSP(reg)
		p := newPSP(pool, cfg, pspMetrics, log)
		u := &unsettled{db: pool, metrics: pspMetrics}
		admin.Detail = func() string { return "psp breaker: " + p.Provider.State() }
		g.Go(func() error { return p.Run(ctx) })
		g.Go(func() error { return u.run(ctx) })
	}
	g.Go(func() error { return admin.Run(ctx) })
	return g.Wait()
}

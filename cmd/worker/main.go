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
// each for its consumer and its upkeep, the four that measure, and the probe.
const connections = 14

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

	// The sender of webhooks is made first: what it needs from outside is checked with the database.
	var sending *hooks
	if cfg.Does("webhooks") {
		if sending, err = newHooks(cfg, reg, newStall("webhooks", webhooksStall, metrics), log); err != nil {
			return err
		}
	}
	pool, err := open(ctx, cfg, sending, log)
	defer postgres.Close(pool)
	if err != nil {
		return err
	}
	telemetry.WatchPool(reg, "worker", pool.Stat)

	checks := []check{pool.Ping}
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, func(ctx context.Context) error {
		return ready(ctx, checks)
	})
	if err != nil {
		return err
	}
	profiles, err := telemetry.ListenPprof(cfg.PprofAddr)
	if err != nil {
		return err
	}

	o := &overdue{db: pool, metrics: metrics}
	b := &books{db: pool, metrics: metrics, log: log}
	parts := []func(context.Context) error{
		admin.Run, profiles.Run, o.run, b.runSum, b.runWalk,
	}
	if cfg.Does("expiry") {
		o.stall = newStall("expiry", 5*max(cfg.ExpiryInterval, batchTimeout), metrics)
		checks = append(checks, o.stall.err)
		parts = append(parts, newExpiry(cfg, pool, o.stall.moves, metrics, log).run)
	}
	if cfg.Does("psp") {
		c := newCards(cfg, pool, reg, newStall("psp", pspStall, metrics), log)
		admin.Detail = c.detail
		checks = append(checks, c.stall.err)
		parts = append(parts, c.run)
	}
	if sending != nil {
		checks = append(checks, sending.consumer.Ready, sending.stall.err)
		parts = append(parts, func(ctx context.Context) error { return sending.run(ctx, pool) })
	}

	log.InfoContext(ctx, "worker started", "parts", cfg.Parts,
		"admin_addr", admin.Addr(), "pprof_addr", profiles.Addr())
	defer log.InfoContext(ctx, "worker stopped")

	// The first part that fails stops the others.
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		g.Go(func() error { return part(ctx) })
	}
	return g.Wait()
}

// open checks what the parts need from outside together, so that one start reports all that is wrong.
// The pool may be there beside an error.
func open(
	ctx context.Context, cfg config.Worker, sending *hooks, log *slog.Logger,
) (pool *pgxpool.Pool, err error) {
	ping := func(context.Context) error { return nil }
	if sending != nil {
		ping = sending.kafka.Ping
	}

	err = program.StartAll(ctx, func(ctx context.Context) (err error) {
		if pool, err = postgres.Open(ctx, cfg.DatabaseURL, "worker", connections, log); err != nil {
			return err
		}
		if err := migrations.Check(ctx, pool); err != nil {
			return err
		}
		need := postgres.Need{Connections: connections}
		if err := postgres.CheckLimits(ctx, pool, need, log); err != nil {
			return err
		}
		return checkRole(ctx, pool, cfg, log)
	}, ping)
	return pool, err
}

// Command worker does what no request asks for: it releases the holds of authorizations whose time
// is over. Run as many as you like: they share the work.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
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
	Name:    "worker",
	About:   "worker releases the holds of authorizations whose time is over.",
	Usage:   config.Usage("worker"),
	Example: "  DATABASE_URL=postgres://worker:secret@localhost:5432/oncepay worker",
	Run:     run,
	Probe: func(getenv func(string) string) (string, error) {
		cfg, err := config.LoadWorker(getenv)
		return cfg.AdminAddr, err
	},
}

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

	var pool *pgxpool.Pool
	err = program.StartAll(ctx, func(ctx context.Context) (err error) {
		if pool, err = postgres.Open(ctx, cfg.DatabaseURL, "worker", 4, log); err != nil {
			return err
		}
		if err := migrations.Check(ctx, pool); err != nil {
			return err
		}
		return checkRole(ctx, pool, log)
	})
	defer postgres.Close(pool)
	if err != nil {
		return err
	}

	telemetry.WatchPool(reg, "worker", pool.Stat)

	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, pool.Ping)
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

	// The first of the three that fails stops the others.
	g, ctx := errgroup.WithContext(ctx)
	if cfg.Does("expiry") {
		g.Go(func() error { return e.run(ctx) })
	}
	g.Go(func() error { return o.run(ctx) })
	g.Go(func() error { return admin.Run(ctx) })
	return g.Wait()
}

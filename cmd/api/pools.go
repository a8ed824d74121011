package main

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/migrations"
)

// pools are the API's connections, apart by what they may wait for.
type pools struct {
	write *pgxpool.Pool // payments
	read  *pgxpool.Pool // what GET shows
	door  *pgxpool.Pool // credentials and readiness: neither waits for payments, nor payments for invented credentials
}

// doorPool is how many look-ups of credentials there may be at once. Each is one read by primary key, and good for 30 s.
const doorPool = 4

// openPools opens them. With an error, close closes those that were opened.
func openPools(ctx context.Context, cfg config.API, log *slog.Logger) (p pools, err error) {
	write := func(ctx context.Context) (err error) {
		if p.write, err = postgres.Open(ctx, cfg.DatabaseURL, "api", cfg.DatabasePool, log, listenForStandby); err != nil {
			return err
		}
		if err := migrations.Check(ctx, p.write); err != nil {
			return err
		}
		if err := checkWriter(ctx, p.write, log); err != nil {
			return err
		}
		p.door, err = postgres.Open(ctx, cfg.DatabaseURL, "api", doorPool, log)
		return err
	}
	read := func(ctx context.Context) (err error) {
		if p.read, err = postgres.Open(ctx, cfg.DatabaseReadURL, "api-read", cfg.ReadPool, log); err != nil {
			return err
		}
		return checkReader(ctx, p.read, cfg, log)
	}
	if cfg.DatabaseReadURL != cfg.DatabaseURL {
		err = program.Together(ctx, write, read)
		return p, err
	}
	err = program.Together(ctx, func(ctx context.Context) error { // one database that is away is one problem
		if err := write(ctx); err != nil {
			return err
		}
		return read(ctx)
	})
	return p, err
}

// listenForStandby: a COMMIT that was broken off while it waited for its standby says so in a warning only.
func listenForStandby(c *pgx.ConnConfig) { c.OnNotice = idempotency.OnNotice }

func (p pools) watch(reg prometheus.Registerer) {
	telemetry.WatchPool(reg, "write", p.write.Stat)
	telemetry.WatchPool(reg, "read", p.read.Stat)
	telemetry.WatchPool(reg, "door", p.door.Stat)
}

func (p pools) close() { postgres.Close(p.write, p.read, p.door) }

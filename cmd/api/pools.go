package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

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

	readiness readiness
}

// doorPool: one look-up of credentials is under way at a time, and one ping.
const doorPool = 2

// readiness keeps the outcome of a ping for a second, so that /readyz, which asks for no credential,
// is no lever on the database.
type readiness struct {
	mu    sync.Mutex
	until time.Time
	err   error
}

const readinessAge = time.Second

func (p *pools) ready(ctx context.Context) error {
	p.readiness.mu.Lock()
	defer p.readiness.mu.Unlock()
	if time.Now().Before(p.readiness.until) {
		return p.readiness.err
	}

	// The outcome is everybody's, and must not be that this caller has left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	p.readiness.err = errors.Join(p.door.Ping(ctx), p.read.Ping(ctx))
	p.readiness.until = time.Now().Add(readinessAge)
	return p.readiness.err
}

// openPools opens them. With an error, close closes those that were opened.
func openPools(ctx context.Context, cfg config.API, log *slog.Logger) (p *pools, err error) {
	p = &pools{}
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
		err = program.StartAll(ctx, write, read)
		return p, err
	}
	err = program.StartAll(ctx, func(ctx context.Context) error { // one database that is away is one problem
		if err := write(ctx); err != nil {
			return err
		}
		return read(ctx)
	})
	return p, err
}

// listenForStandby: a COMMIT that was broken off while it waited for its standby says so in a warning only.
func listenForStandby(c *pgx.ConnConfig) { c.OnNotice = idempotency.OnNotice }

func (p *pools) watch(reg prometheus.Registerer) {
	telemetry.WatchPool(reg, "write", p.write.Stat)
	telemetry.WatchPool(reg, "read", p.read.Stat)
	telemetry.WatchPool(reg, "door", p.door.Stat)
}

func (p *pools) close() { postgres.Close(p.write, p.read, p.door) }

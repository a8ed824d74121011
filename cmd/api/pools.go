package main

import (
	"context"
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

// pools are the API's connections, separated by what they may wait for.
type pools struct {
	write *pgxpool.Pool // payments
	read  *pgxpool.Pool // what GET shows
	auth  *pgxpool.Pool // credentials and readiness, which must not wait for payments or delay them

	readiness readiness
}

const (
	readPool = 8 // a GET is a few index look-ups
	authPool = 2 // one look-up of credentials runs at a time, and one ping
)

// readiness caches the result of a ping for a second, so that /readyz, which needs no credential,
// cannot be used to load the database. The read pool does not count: while its database is away or
// its connections are taken, GETs fail and payments go on.
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

	// The result is shared, so it must not depend on whether this caller disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	p.readiness.err = p.auth.Ping(ctx)
	p.readiness.until = time.Now().Add(readinessAge)
	return p.readiness.err
}

// openPools opens the pools. After an error, close closes those that were opened.
func openPools(ctx context.Context, cfg config.API, log *slog.Logger) (p *pools, err error) {
	p = &pools{}

	write := func(ctx context.Context) (err error) {
		url := cfg.DatabaseURL
		p.write, err = postgres.Open(ctx, url, "api", cfg.DatabasePool, log, listenForStandby)
		if err != nil {
			return err
		}
		if err := migrations.Check(ctx, p.write); err != nil {
			return err
		}
		if err := postgres.CheckLimits(ctx, p.write, need(cfg), log); err != nil {
			return err
		}
		if err := checkWriter(ctx, p.write, log); err != nil {
			return err
		}
		p.auth, err = postgres.Open(ctx, url, "api", authPool, log)
		return err
	}

	read := func(ctx context.Context) (err error) {
		p.read, err = postgres.Open(ctx, cfg.DatabaseReadURL, "api-read", readPool, log)
		if err != nil {
			return err
		}
		return checkReader(ctx, p.read, cfg, log)
	}

	if cfg.DatabaseReadURL != cfg.DatabaseURL {
		return p, program.StartAll(ctx, write, read)
	}
	// One after the other, so that a database that is away is reported once.
	return p, program.StartAll(ctx, func(ctx context.Context) error {
		if err := write(ctx); err != nil {
			return err
		}
		return read(ctx)
	})
}

// need is what this instance takes from the primary at its peak: its connections, and a lock for the
// key of every request that is being executed.
func need(cfg config.API) postgres.Need {
	n := postgres.Need{
		Connections: cfg.DatabasePool + authPool,
		Locks:       cfg.Committers * cfg.BatchMax,
	}
	if cfg.DatabaseReadURL == cfg.DatabaseURL {
		n.Connections += readPool
	}
	return n
}

// listenForStandby receives the warning that is the only sign of a COMMIT that stopped waiting for
// its standby.
func listenForStandby(c *pgx.ConnConfig) { c.OnNotice = idempotency.OnNotice }

func (p *pools) watch(reg prometheus.Registerer) {
	telemetry.WatchPool(reg, "write", p.write.Stat)
	telemetry.WatchPool(reg, "read", p.read.Stat)
	telemetry.WatchPool(reg, "auth", p.auth.Stat)
}

func (p *pools) close() { postgres.Close(p.write, p.read, p.auth) }

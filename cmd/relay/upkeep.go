package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// upkeep keeps the partitions, which every relay does, leader or not: the functions in the database let one caller after
// the other work, and the next finds nothing to do. And it measures the backlog while this relay leads.
type upkeep struct {
	pool    *pgxpool.Pool
	cfg     config.Relay
	metrics *telemetry.Relay
	log     *slog.Logger
	leads   atomic.Bool
}

func (u *upkeep) lead(leads bool) {
	u.leads.Store(leads)
	u.metrics.Leader(leads)
}

const (
	partitionsEvery = 10 * time.Minute
	partitionsRetry = 2 * time.Second // after a lock that a writer held for longer than 50 ms
	measureEvery    = 2 * time.Second
)

func (u *upkeep) run(ctx context.Context) error {
	partitions, measure := time.NewTimer(0), time.NewTicker(measureEvery)
	defer partitions.Stop()
	defer measure.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-partitions.C:
			if u.keepPartitions(ctx) {
				partitions.Reset(partitionsEvery)
			} else {
				partitions.Reset(partitionsRetry)
			}
		case <-measure.C:
			if !u.leads.Load() {
				continue
			}
			if b, err := outbox.MeasureBacklog(ctx, u.pool, u.cfg.Name); err == nil { // a database that is away is the relay's to report
				u.metrics.Backlog(b.Events, b.OldestAge)
			}
		}
	}
}

func (u *upkeep) keepPartitions(ctx context.Context) (done bool) {
	events, err := outbox.KeepPartitions(ctx, u.pool, u.cfg.OutboxRetention)
	done = u.report(ctx, "outbox_events", events.Made, events.Dropped, events.DefaultRows, err)
	if err == nil {
		u.metrics.OutboxPartitions(events.DefaultRows, events.DaysAhead)
	}
	keys, err := idempotency.KeepPartitions(ctx, u.pool, u.cfg.IdempotencyRetention)
	done = u.report(ctx, "idempotency_keys", keys.Made, keys.Dropped, keys.DefaultRows, err) && done
	if err == nil {
		u.metrics.KeyPartitions(keys.DefaultRows, keys.DaysAhead)
	}
	return done
}

func (u *upkeep) report(ctx context.Context, table string, made, dropped int, strays int64, err error) (done bool) {
	var pg *pgconn.PgError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &pg) && pg.Code == "55P03": // lock_not_available: the writers go first
		u.log.DebugContext(ctx, "partitions not kept, the table is busy", "table", table)
	case err != nil:
		u.metrics.Error("partitions")
		u.log.WarnContext(ctx, "partitions not kept", "table", table, "error", err)
	case made+dropped > 0:
		u.log.InfoContext(ctx, "partitions kept", "table", table, "made", made, "dropped", dropped)
	}
	if strays > 0 {
		u.log.ErrorContext(ctx, "rows in the default partition: a day's partition was missing", "table", table, "rows", strays)
	}
	return err == nil
}

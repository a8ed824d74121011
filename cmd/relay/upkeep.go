package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// upkeep keeps the partitions, which every relay does, leader or not: in the database one caller works after the other, and
// the next finds nothing to do. And it measures, leader or not: how long the partitions last, and what waits in the outbox. A leader that
// is idle, stuck or dead must not hide that.
type upkeep struct {
	pool    *pgxpool.Pool
	cfg     config.Relay
	metrics *telemetry.Relay
	log     *slog.Logger
	writers relay.Writers
}

const (
	partitionsEvery = 10 * time.Minute
	partitionsRetry = 2 * time.Second // after a lock that a writer held for longer than 50 ms
	measureEvery    = 2 * time.Second
	measureTimeout  = 10 * time.Second // a connection may have died unseen
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
			next := partitionsEvery
			if !u.keepPartitions(ctx) {
				next = partitionsRetry
			}
			partitions.Reset(next)
			u.measurePartitions(ctx) // above all when they could not be kept
		case <-measure.C:
			u.measureBacklog(ctx)
			u.metrics.ForgetTopics(time.Now())
		}
	}
}

func (u *upkeep) keepPartitions(ctx context.Context) (done bool) {
	events, err := outbox.KeepPartitions(ctx, u.pool, u.cfg.OutboxRetention)
	done = u.report(ctx, "outbox_events", events.Made, events.Dropped, err)
	keys, err := idempotency.KeepPartitions(ctx, u.pool)
	return u.report(ctx, "idempotency_keys", keys.Made, keys.Dropped, err) && done
}

func (u *upkeep) report(ctx context.Context, table string, made, dropped int, err error) (done bool) {
	var pg *pgconn.PgError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &pg) && pg.Code == "55P03": // lock_not_available: the writers go first
		u.metrics.Error("partitions_busy")
		u.log.DebugContext(ctx, "partitions not kept, the table is busy", "table", table)
	case err != nil:
		u.metrics.Error("partitions")
		u.log.WarnContext(ctx, "partitions not kept", "table", table, "error", err)
	case made+dropped > 0:
		u.log.InfoContext(ctx, "partitions kept", "table", table, "made", made, "dropped", dropped)
	}
	return err == nil
}

// Read from the catalogue, so that it tells the truth above all when partitions can no longer be made.
const daysAhead = `
SELECT t.name, count(c.oid) FILTER (WHERE to_date(right(c.relname, 8), 'YYYYMMDD') > (now() AT TIME ZONE 'utc')::date)
FROM unnest(ARRAY['outbox_events', 'idempotency_keys']) t(name)
LEFT JOIN pg_inherits i ON i.inhparent = to_regclass(t.name)
LEFT JOIN pg_class c ON c.oid = i.inhrelid AND c.relname ~ '_[0-9]{8}$'
GROUP BY t.name`

func (u *upkeep) measurePartitions(ctx context.Context) {
	rows, err := u.pool.Query(ctx, daysAhead)
	if err == nil {
		var table string
		var days int
		_, err = pgx.ForEachRow(rows, []any{&table, &days}, func() error {
			u.metrics.DaysAhead(table, days)
			return nil
		})
	}
	if err != nil && ctx.Err() == nil {
		u.log.WarnContext(ctx, "partitions not measured", "error", err)
	}
}

// measureBacklog says nothing of a database that is away: the relay does.
func (u *upkeep) measureBacklog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	if b, err := relay.MeasureBacklog(ctx, u.pool, u.cfg.Name); err != nil {
		u.metrics.NoBacklog()
	} else {
		u.metrics.Backlog(b.Events, b.OldestAge, b.DeadLetters, b.ParkedAggregates)
	}
	if oldest, err := u.writers.Oldest(ctx, u.pool); err != nil {
		u.metrics.NoWriter()
	} else {
		u.metrics.OldestWriter(oldest)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
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

// upkeep keeps the partitions and measures how long they last and what waits in the outbox. Every
// relay does both, leader or not. The database lets one caller maintain partitions at a time, and
// the next finds nothing to do; and a leader that is idle, stuck or dead must not hide a backlog.
type upkeep struct {
	pool    *pgxpool.Pool
	cfg     config.Relay
	metrics *telemetry.Relay
	locks   *telemetry.Locks
	log     *slog.Logger
	probe   *probe

	writers   relay.Writers
	snapshots relay.Snapshots
	oldAfter  time.Duration   // when a snapshot is old enough for the log to name who holds it
	old       map[string]bool // holders that it has named
}

const (
	partitionsEvery = 10 * time.Minute
	partitionsRetry = 2 * time.Second // after a writer held a lock for longer than 50 ms
	measureEvery    = 2 * time.Second
	measureTimeout  = 10 * time.Second // a connection may have died unnoticed
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

			// Measure even after a failure: that is when the number matters most.
			u.measurePartitions(ctx)
		case <-measure.C:
			u.measureBacklog(ctx)
			u.measureStall(ctx)
			u.measureSnapshots(ctx)
			measureLocks(ctx, u.pool, u.locks)
			u.metrics.ForgetTopics(time.Now())
		}
	}
}

func (u *upkeep) keepPartitions(ctx context.Context) (done bool) {
	events, err := outbox.KeepPartitions(ctx, u.pool, u.cfg.OutboxRetention)
	done = u.report(ctx, "outbox_events", events.Made, events.Dropped, err)

	// A busy outbox must not hold up the keys.
	keys, err := idempotency.KeepPartitions(ctx, u.pool)
	return u.report(ctx, "idempotency_keys", keys.Made, keys.Dropped, err) && done
}

func (u *upkeep) report(
	ctx context.Context, table string, made, dropped int, err error,
) (done bool) {
	var pg *pgconn.PgError
	switch {
	case ctx.Err() != nil:
	case errors.As(err, &pg) && pg.Code == "55P03": // lock_not_available: writers have priority
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

// Read from the catalog, so that it stays correct when partitions can no longer be created.
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
		u.metrics.NoDaysAhead()
		u.log.WarnContext(ctx, "partitions not measured", "error", err)
	}
}

// measureBacklog logs nothing when the database is down: the relay does.
func (u *upkeep) measureBacklog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	// A value that could not be measured is withdrawn, not left at its last reading.
	b, err := relay.MeasureBacklog(ctx, u.pool, u.cfg.Name)
	if err != nil {
		u.metrics.NoBacklog()
	} else {
		u.metrics.Backlog(b.Events, b.OldestAge, b.DeadLetters, b.ParkedAggregates)
	}

	oldest, err := u.writers.Oldest(ctx, u.pool)
	if err != nil {
		u.metrics.NoWriter()
	} else {
		u.metrics.OldestWriter(oldest)
	}
	u.probe.waiting(b.ParkedAggregates, oldest)
}

// measureStall is apart from the probe, which may never be asked.
func (u *upkeep) measureStall(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	if stall, err := u.probe.look(ctx); err != nil {
		u.metrics.NoStalled()
	} else {
		u.metrics.Stalled(stall != nil)
	}
}

// snapshotOld leaves a backup or a report its time.
const snapshotOld = time.Minute

func (u *upkeep) measureSnapshots(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	oldest, err := u.snapshots.Oldest(ctx, u.pool)
	if err != nil {
		u.metrics.NoSnapshot()
		return
	}

	old := map[string]bool{}
	for _, kind := range []string{"session", "slot", "standby"} {
		s := oldest[kind] // zero: there is none
		u.metrics.OldestSnapshot(kind, s.Seen, s.Transactions)
		if s.Seen < u.oldAfter {
			continue
		}

		holder := fmt.Sprint(kind, s.Name, s.PID)
		old[holder] = true
		if !u.old[holder] {
			u.log.WarnContext(ctx, "an old snapshot is held: vacuum cleans up nothing newer, and "+
				"accounts that change often become slow", "kind", kind, "name", s.Name, "pid", s.PID,
				"seen_for", s.Seen.Round(time.Second), "transactions_since", s.Transactions)
		}
	}
	u.old = old
}

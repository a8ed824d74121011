package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/tools/rig"
)

// look is what counters showed at the beginning of a minute.
type look struct {
	at                   time.Time
	wal, images          float64 // bytes, and how many full pages are among them
	transactions         float64 // with an id
	checkpoints          int64
	api, relay, postgres float64 // seconds of processor time
	tables               []tableLook

	// Of the minute that begins.
	latencies rig.Latencies
	frozen    []string // tables that autovacuum was in to prevent wraparound
}

// tableLook is a table with all of its partitions.
type tableLook struct {
	Name          string
	Heap, Indexes float64 // bytes
	Live, Dead    float64 // rows
	Updated, Hot  float64 // rows; hot are those whose update touched no index
	Vacuums       int64   // by autovacuum
	Age           int64   // transactions since it was last frozen
}

const (
	lookAtServer = `
SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, wal_fpi::float8,
  pg_snapshot_xmax(pg_current_snapshot())::text::float8
FROM pg_stat_wal`

	// Checkpoints are counted in a view of their own since Postgres 17.
	checkpointer        = `SELECT to_regclass('pg_stat_checkpointer') IS NOT NULL`
	lookAtCheckpoints   = `SELECT num_timed + num_requested FROM pg_stat_checkpointer`
	lookAtCheckpoints16 = `SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter`

	lookAtTables = `
SELECT regexp_replace(s.relname, '_[0-9]{8}$', '') AS name, sum(pg_table_size(s.relid))::float8 AS heap,
  sum(pg_indexes_size(s.relid))::float8 AS indexes, sum(n_live_tup)::float8 AS live, sum(n_dead_tup)::float8 AS dead,
  sum(n_tup_upd)::float8 AS updated, sum(n_tup_hot_upd)::float8 AS hot, sum(autovacuum_count)::bigint AS vacuums,
  max(age(c.relfrozenxid))::bigint AS age
FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
WHERE c.relkind = 'r' AND n_live_tup > 0 GROUP BY 1 ORDER BY 2 DESC`

	lookAtFreezing = `
SELECT regexp_replace(query, '^autovacuum: VACUUM (ANALYZE )?(public\.)?(\S+) .*', '\3') FROM pg_stat_activity
WHERE backend_type = 'autovacuum worker' AND query LIKE '%to prevent wraparound%'`
)

// bringWraparoundNear takes so many transaction ids that autovacuum freezes all tables, if the limit
// was set low: -postgres autovacuum_freeze_max_age=500000.
const bringWraparoundNear = `
DO $$ DECLARE most int := current_setting('autovacuum_freeze_max_age'); BEGIN
  IF most > 1000000 THEN
    RETURN;
  END IF;
  FOR i IN 1..most LOOP
    PERFORM pg_current_xact_id();
    COMMIT;
  END LOOP;
END $$`

// watch looks every minute, and every second at what autovacuum does.
type watch struct {
	*hourBench
	api, relay *process.Process
	conn       *pgx.Conn
}

// run takes the first look at once and the last one when the last minute is over.
func (w *watch) run(ctx context.Context) (err error) {
	if w.conn, err = rig.Connect(ctx, w.owner(template)); err != nil {
		return err
	}
	defer w.conn.Close(context.WithoutCancel(ctx))

	began := time.Now()
	for minute := range w.minutes + 1 {
		for begins := began.Add(time.Duration(minute) * time.Minute); time.Now().Before(begins); {
			rig.Wait(ctx, time.Now().Add(min(time.Second, time.Until(begins))))
			if err := w.lookAtFreezing(ctx); err != nil {
				return fmt.Errorf("look at autovacuum: %w", err)
			}
		}

		if err := w.look(ctx); err != nil {
			return fmt.Errorf("look at the server: %w", err)
		}
		w.sayMinute()

		if minute == w.minutes/2 {
			if err := rig.Execute(ctx, w.owner(template), `SET synchronous_commit = off`, bringWraparoundNear); err != nil {
				return fmt.Errorf("bring wraparound near: %w", err)
			}
		}
	}
	return nil
}

func (w *watch) look(ctx context.Context) error {
	l := look{at: time.Now()}
	if err := w.conn.QueryRow(ctx, lookAtServer).Scan(&l.wal, &l.images, &l.transactions); err != nil {
		return err
	}

	var moved bool
	if err := w.conn.QueryRow(ctx, checkpointer).Scan(&moved); err != nil {
		return err
	}
	sql := lookAtCheckpoints16
	if moved {
		sql = lookAtCheckpoints
	}
	if err := w.conn.QueryRow(ctx, sql).Scan(&l.checkpoints); err != nil {
		return err
	}

	rows, err := w.conn.Query(ctx, lookAtTables)
	if err != nil {
		return err
	}
	if l.tables, err = pgx.CollectRows(rows, pgx.RowToStructByName[tableLook]); err != nil {
		return err
	}

	ofAPI, apiErr := w.spent(ctx, w.api)
	ofRelay, relayErr := processorTimes([]*process.Process{w.relay})
	if err := errors.Join(apiErr, relayErr); err != nil {
		return err
	}

	l.api, l.postgres, l.relay = ofAPI.program, ofAPI.postgres, ofRelay[0]
	w.looks = append(w.looks, l)
	return nil
}

func (w *watch) lookAtFreezing(ctx context.Context) error {
	rows, err := w.conn.Query(ctx, lookAtFreezing)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}

	now := &w.looks[len(w.looks)-1]
	now.frozen = append(now.frozen, tables...)
	slices.Sort(now.frozen)
	now.frozen = slices.Compact(now.frozen)
	return nil
}

// sayMinute shows that it goes on.
func (w *watch) sayMinute() {
	n := len(w.looks) - 1
	if n == 0 {
		return
	}

	before, now := w.looks[n-1], w.looks[n]
	w.Say("minute %d of %d: %.0f MB of log, %d checkpoints", n, w.minutes, (now.wal-before.wal)/1e6,
		now.checkpoints-before.checkpoints)
}

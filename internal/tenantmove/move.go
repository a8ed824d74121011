package tenantmove

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrRefused is returned for a move that must not be: its text says why.
var ErrRefused = errors.New("refused")

// Result is what Move has done.
type Result struct {
	Tenant uuid.UUID        `json:"tenant_id"`
	Target string           `json:"target"`
	Rows   map[string]int64 `json:"rows"` // by table; empty: an earlier run had finished

	attempt uuid.UUID
	gone    bool // it had left before; the target does not have it
}

// Move moves a tenant from source to target. It waits for at most patience until the tenant has come
// to rest; the copy takes as long as it takes. After an error call it again, or Stay.
func Move(
	ctx context.Context, source, target *pgxpool.Pool, tenant uuid.UUID, patience time.Duration,
) (r Result, err error) {
	unlock, err := lock(ctx, source, tenant)
	if err != nil {
		return r, err
	}
	defer unlock()

	r = Result{Tenant: tenant, Rows: map[string]int64{}}
	finished, err := r.begin(ctx, source, target)
	if err != nil || finished {
		return r, err
	}

	resting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := waitForOpen(resting, source); err != nil {
		return r, err
	}
	err = waitForRest(resting, source, tenant)
	switch {
	case r.gone && errors.Is(err, ErrBusy): // what has left is not settled here
		return r, fmt.Errorf("%w; it has left, and the target does not have it: let it stay, then move it again", err)
	case err != nil:
		return r, err
	}
	return r, r.copy(ctx, source, target)
}

// One command about a tenant at a time, for as long as this connection lives. The server may take a
// moment to notice that a command was killed.
const (
	lockPatience = `SET lock_timeout = '5s'`
	lockMove     = `SELECT pg_advisory_lock(hashtextextended('tenant move ' || $1::uuid::text, 0))`
)

func lock(ctx context.Context, source *pgxpool.Pool, tenant uuid.UUID) (unlock func(), err error) {
	conn, err := source.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to source: %w", err)
	}

	unlock = func() { _ = conn.Hijack().Close(context.WithoutCancel(ctx)) }

	_, err = conn.Exec(ctx, lockPatience)
	if err == nil {
		_, err = conn.Exec(ctx, lockMove, tenant)
	}
	if err == nil {
		return unlock, nil
	}
	unlock()
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55P03" { // lock_not_available
		return nil, fmt.Errorf("%w: another command is moving this tenant", ErrRefused)
	}
	return nil, fmt.Errorf("lock the move: %w", err)
}

// The system identifier alone is the same for two databases of a server. A standby has its primary's.
const identity = `
SELECT system_identifier || '/' || current_database(), pg_is_in_recovery() FROM pg_control_system()`

// identify refuses standbys: what they show is old, and their locks keep nobody from the primary.
func identify(ctx context.Context, db querier, which string) (id string, err error) {
	var standby bool
	if err := db.QueryRow(ctx, identity).Scan(&id, &standby); err != nil {
		return "", fmt.Errorf("identify %s: %w", which, err)
	}
	if standby {
		return "", fmt.Errorf("%w: this server of the %s is a standby: name the primary", ErrRefused, which)
	}
	return id, nil
}

// A snapshot of a later statement has what was committed before a lock was free.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// A program that is older than tenant_moves would serve the tenant again, so it starts no more. A note
// of another target stays, whatever its state: that target may have the tenant. Stay looks there.
const noteLeaving = `
WITH serves AS (
  UPDATE schema_files SET oldest_program = version
  WHERE name = '00014_tenant_moves.sql' AND oldest_program < version)
INSERT INTO tenant_moves AS m (tenant_id, target) VALUES ($1, $2)
ON CONFLICT (tenant_id) DO UPDATE SET target = excluded.target, attempt = excluded.attempt
WHERE m.target = excluded.target
RETURNING attempt`

const isThere = `SELECT EXISTS (SELECT FROM tenants WHERE id = $1)`

const hasLeft = `SELECT EXISTS (SELECT FROM tenant_moves WHERE tenant_id = $1 AND state = 'left' AND target = $2)`

var errThere = fmt.Errorf("%w: the target has the tenant; if this database was restored, or a failover "+
	"lost its last transactions, note here that it has left: \"Move a tenant\" in docs/scaling.md; "+
	"a tenant that came from the target cannot go back there", ErrRefused)

// begin notes that the tenant leaves, and reports whether it has arrived already.
func (r *Result) begin(ctx context.Context, source, target *pgxpool.Pool) (finished bool, err error) {
	from, err := identify(ctx, source, "source")
	if err != nil {
		return false, err
	}
	if r.Target, err = identify(ctx, target, "target"); err != nil {
		return false, err
	}
	if from == r.Target {
		return false, fmt.Errorf("%w: source and target are the same database", ErrRefused)
	}

	var arrived bool
	if err := target.QueryRow(ctx, isThere, r.Tenant).Scan(&arrived); err != nil {
		return false, fmt.Errorf("look for the tenant at the target: %w", err)
	}
	if err := source.QueryRow(ctx, hasLeft, r.Tenant, r.Target).Scan(&r.gone); err != nil {
		return false, fmt.Errorf("look for the tenant at the source: %w", err)
	}
	switch {
	case arrived && r.gone:
		return true, nil
	case arrived:
		return false, errThere
	}
	if err := canShareArchive(ctx, source, target); err != nil {
		return false, err
	}

	err = source.QueryRow(ctx, noteLeaving, r.Tenant, r.Target).Scan(&r.attempt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, fmt.Errorf("%w: the tenant moves to another target, or has moved there "+
			"(oncepay tenants list shows which): run oncepay tenants stay with that one first", ErrRefused)
	case err != nil:
		return false, fmt.Errorf("note that the tenant leaves: %w", err)
	}
	return false, nil
}

// Of the days that a look-up covers, and one more. In transactions of their own: the lock must not
// be kept while rows are copied.
const (
	keyDays = `
SELECT keep, ARRAY(SELECT generate_series(
    (now() AT TIME ZONE 'utc' - keep)::date - 1, (now() AT TIME ZONE 'utc')::date, '1 day')::date)
FROM idempotency_retention`

	keepKeys = `
INSERT INTO idempotency_retention AS r (keep) VALUES ($1)
ON CONFLICT (only_row) DO UPDATE SET keep = greatest(r.keep, excluded.keep)`

	lockDays = `SELECT pg_advisory_xact_lock(hashtextextended('idempotency_keys partitions', 0))`
	makeDays = `SELECT idempotency_keys_make_day(d) FROM unnest($1::date[]) d`
)

// prepare makes room for the keys of the source's retention. The target keeps all keys as long.
func prepare(ctx context.Context, source, target *pgxpool.Pool) error {
	var keep time.Duration
	var days []time.Time
	err := source.QueryRow(ctx, keyDays).Scan(&keep, &days)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: no API has ever run at the source", ErrRefused)
	}
	if err != nil {
		return fmt.Errorf("read how long keys are kept: %w", err)
	}

	err = pgx.BeginFunc(ctx, target, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, keepKeys, keep); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lockDays); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, makeDays, days)
		return err
	})
	if err != nil {
		return fmt.Errorf("make room for keys at the target: %w", err)
	}
	return nil
}

// Rows are compared as text, so both sides must write it alike. And no limit may end the copy;
// transaction_timeout is known since Postgres 17.
const writeAlike = `
SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'postgres';
SET LOCAL bytea_output = 'hex';
SELECT set_config(name, '0', true) FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')`

// Each note has an attempt of its own: who has read the one before, such as Stay, removes nothing.
const noteLeft = `
UPDATE tenant_moves SET state = 'left', attempt = gen_random_uuid(), since = now()
WHERE tenant_id = $1 AND attempt = $2`

func (r *Result) copy(ctx context.Context, source, target *pgxpool.Pool) error {
	if err := prepare(ctx, source, target); err != nil {
		return err
	}

	return pgx.BeginTxFunc(ctx, target, readCommitted, func(to pgx.Tx) error {
		if _, err := to.Exec(ctx, writeAlike); err != nil {
			return fmt.Errorf("set up target: %w", err)
		}
		if err := r.copyFrom(ctx, source, to); err != nil {
			return err
		}

		// Crash point: copied, not committed. Nothing is at the target, the tenant may stay.
		tag, err := source.Exec(ctx, noteLeft, r.Tenant, r.attempt)
		if err != nil {
			return fmt.Errorf("note that the tenant has left: %w", err)
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("%w: another command has taken over this move", ErrRefused)
		}
		// Crash point: it has left, and the target has nothing. The next Move copies again.
		return nil // commits
	})
}

// The session's, so that the snapshot begins when the archive is locked.
const (
	keepArchive    = `SELECT pg_try_advisory_lock(hashtext('oncepay archive'))`
	releaseArchive = `SELECT pg_advisory_unlock_all()`
)

func (r *Result) copyFrom(ctx context.Context, source *pgxpool.Pool, to pgx.Tx) error {
	conn, err := source.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to source: %w", err)
	}
	// The server notices a closed connection some time later, and the next move may follow at once. If
	// this fails, the lock still goes with the connection.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = conn.Exec(ctx, releaseArchive)
		_ = conn.Hijack().Close(ctx)
	}()

	var alone bool
	if err := conn.QueryRow(ctx, keepArchive).Scan(&alone); err != nil {
		return fmt.Errorf("lock the archive: %w", err)
	}
	if !alone {
		return errArchiving
	}
	adopt, err := sameArchive(ctx, conn, to)
	if err != nil {
		return err
	}

	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, conn, snapshot, func(from pgx.Tx) error {
		if _, err := from.Exec(ctx, writeAlike); err != nil {
			return fmt.Errorf("set up source: %w", err)
		}
		if adopt {
			if err := adoptArchive(ctx, from, to); err != nil {
				return err
			}
		}
		for _, t := range moved {
			n, err := copyTable(ctx, from, to, t, r.Tenant)
			if err != nil {
				return err
			}
			r.Rows[t.name] = n
		}
		return checkBalances(ctx, to, r.Tenant)
	})
}

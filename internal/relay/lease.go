package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	// ErrRestored says that the cursor belongs to another database than the one it stands in, that the outbox holds
	// transactions of the future, or that the broker has more of this relay than the cursor knows of: a restored backup or
	// dump, or a standby that was promoted without the newest transactions. Sending on would lose or repeat events in
	// silence, so an operator decides; see docs/operating.md.
	ErrRestored = errors.New("the database was restored, or is another one: see \"After a restore\" in docs/operating.md")

	// ErrFenced says that the cursor is not where this leader left it: another relay has become leader, or the connection
	// goes to another server now, a standby that was promoted without the newest transactions. What this leader remembers
	// counts no longer, the table does.
	ErrFenced = errors.New("the cursor was moved by somebody else: another relay leads, or the database failed over")

	errStandby = errors.New("the database is a standby: its snapshots do not show running transactions")
)

// The first relay of a name makes its row. Its position is the beginning: all that is kept is sent.
const ensureCursor = `
INSERT INTO outbox_cursors (relay, seen, system_identifier, database_oid)
SELECT $1, pg_current_snapshot(), s.system_identifier, d.oid
FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
ON CONFLICT DO NOTHING`

// Standbys look before they write, so that waiting costs no WAL. A lease is free when it was given back (-infinity) or has run out.
// clock_timestamp(), because now() is when the transaction began, which is before it may have waited for the row.
const lookAtLease = `
SELECT lease_until < clock_timestamp() FROM outbox_cursors WHERE relay = $1`

const takeLease = `
UPDATE outbox_cursors SET holder = $2, lease_until = clock_timestamp() + $3::interval, fencing_token = fencing_token + 1
WHERE relay = $1 AND lease_until < clock_timestamp()
RETURNING fencing_token, batches, last_id, seen::text, coalesce(chunk_after, 0), coalesce(chunk_seen::text, '')`

// A visible row has an xid below the snapshot's xmax, always; one that has not was written by a transaction of another
// database, and the cursor's comparisons of xids mean nothing. Reads the end of the index on (xid, id). The timeline is that of
// the log as it is written now: pg_control_checkpoint() tells it only after the next checkpoint.
const guard = `
SELECT pg_is_in_recovery(),
       c.system_identifier <> s.system_identifier OR c.database_oid <> d.oid
       OR EXISTS (SELECT FROM outbox_events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())),
       c.system_identifier, c.database_oid, c.epoch::text,
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END
FROM outbox_cursors c, pg_control_system() s, pg_database d WHERE c.relay = $1 AND d.datname = current_database()`

// Every WHERE names the fencing token: a leader that was replaced moves and renews nothing. And the cursor has to be where
// this leader believes it to be, on the timeline that its term began on: after a failover that lost the newest transactions, ids that it
// has read are handed out again, for events that it has not. Holder is one run of one process, since such a failover hands out tokens
// again as well. A lease that was given back stays so, although a statement that was given up arrives late.
const led = `
WHERE relay = $1 AND fencing_token = $2 AND holder = $3 AND batches = $4 AND lease_until > '-infinity'
  AND ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint = $5`

const moveCursor = `
UPDATE outbox_cursors SET batches = $7, last_id = $8, seen = $9::text::pg_snapshot, chunk_after = nullif($10::bigint, 0), chunk_seen = nullif($11, '')::pg_snapshot,
    moved_at = clock_timestamp(), lease_until = clock_timestamp() + $6::interval` + led

const renewLease = `
UPDATE outbox_cursors SET lease_until = clock_timestamp() + $6::interval` + led

const releaseLease = `
UPDATE outbox_cursors SET lease_until = '-infinity' WHERE relay = $1 AND fencing_token = $2 AND holder = $3`

// term is one relay's time as leader.
type term struct {
	db            *pgxpool.Pool
	relay, holder string
	lease         time.Duration
	token         int64    // fencing token
	is            Progress // what identifies the cursor and its database

	mu      sync.Mutex                // one statement at a time: each says where the one before left the cursor
	at      Position                  // of the cursor, as the table has it
	renewed atomic.Pointer[time.Time] // the lease runs from here, or from a little later
}

// candidate is a relay that would like to lead.
type candidate struct {
	db            *pgxpool.Pool
	relay, holder string
	lease         time.Duration
}

// elect tries to become leader. Not elected: nil and no error.
func (c *candidate) elect(ctx context.Context) (*term, error) {
	ctx, cancel := context.WithTimeout(ctx, c.lease) // a connection may have died unseen
	defer cancel()

	var free bool
	err := c.db.QueryRow(ctx, lookAtLease, c.relay).Scan(&free)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = c.db.Exec(ctx, ensureCursor, c.relay)
		free = true
	}
	if err != nil {
		return nil, fmt.Errorf("look at lease: %w", err)
	}
	if !free {
		return nil, nil
	}

	t := &term{db: c.db, relay: c.relay, holder: c.holder, lease: c.lease}
	begun := time.Now()
	t.renewed.Store(&begun)
	var standby, restored bool
	err = c.db.QueryRow(ctx, guard, c.relay).
		Scan(&standby, &restored, &t.is.SystemIdentifier, &t.is.DatabaseOID, &t.is.Epoch, &t.is.Timeline)
	switch {
	case err != nil:
		return nil, fmt.Errorf("check database: %w", err)
	case standby:
		return nil, errStandby
	case restored:
		return nil, ErrRestored
	}
	err = c.db.QueryRow(ctx, takeLease, c.relay, c.holder, c.lease).
		Scan(&t.token, &t.at.Batches, &t.at.Last, &t.at.Seen, &t.at.ChunkAfter, &t.at.ChunkSeen)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil // another standby was faster
	}
	if err != nil {
		return nil, fmt.Errorf("take lease: %w", err)
	}
	return t, nil
}

// keep is the term's heartbeat: it renews the lease when a third of it has passed. It returns ErrFenced when this relay leads no more,
// another error when it could not renew before the lease ran out, and nil when ctx ends.
func (t *term) keep(ctx context.Context) error {
	for ctx.Err() == nil {
		sleep(ctx, max(t.remaining()-t.lease*2/3, t.lease/12))
		if t.remaining() > t.lease*2/3 {
			continue // a move has renewed it
		}
		if err := t.renew(ctx); errors.Is(err, ErrFenced) || err != nil && t.remaining() <= 0 {
			return err
		}
	}
	return nil
}

// renew prolongs the lease. It waits for a third of it at most: a connection may have died unseen, and the next try has another one.
func (t *term) renew(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.update(ctx, t.lease/3, "renew lease", renewLease)
}

// move puts the cursor behind what the broker has acknowledged, and renews the lease. It does not outlast the lease.
func (t *term) move(ctx context.Context, p Position) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.update(ctx, max(t.remaining(), t.lease/3), "move cursor", moveCursor, p.Batches, p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen)
	if err == nil {
		t.at = p
	}
	return err
}

func (t *term) update(ctx context.Context, limit time.Duration, doing, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	begun := time.Now()
	tag, err := t.db.Exec(ctx, sql, append([]any{t.relay, t.token, t.holder, t.at.Batches, t.is.Timeline, t.lease}, args...)...)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", doing, err)
	case tag.RowsAffected() == 0:
		return ErrFenced
	}
	t.renewed.Store(&begun)
	return nil
}

// remaining returns how much of the lease is certainly left. It does not wait for a statement that is under way.
func (t *term) remaining() time.Duration { return t.lease - time.Since(*t.renewed.Load()) }

// release ends the term early, so that a standby need not wait for the lease to run out. When it fails, it waits.
func (t *term) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = t.db.Exec(ctx, releaseLease, t.relay, t.token, t.holder)
}

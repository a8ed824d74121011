package outbox

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

// Standbys look before they write, so that waiting costs no WAL. clock_timestamp(), because now() is when the transaction
// began, which is before it may have waited for the row.
const lookAtLease = `
SELECT lease_until = '-infinity', lease_until < clock_timestamp() + $2::interval, lease_until < clock_timestamp(), batches, last_id, seen::text, coalesce(chunk_after, 0), coalesce(chunk_seen::text, '')
FROM outbox_cursors WHERE relay = $1`

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

// The fencing token stands in every WHERE: a leader that was replaced moves and renews nothing. And the cursor has to
// be where this leader believes it to be: after a failover that lost the newest transactions, ids that it has read are handed out
// again, for events that it has not. Holder is one run of one process, since such a failover hands out tokens again as well.
const led = `
WHERE relay = $1 AND fencing_token = $2 AND holder = $3 AND batches = $4`

const moveCursor = `
UPDATE outbox_cursors SET batches = $5, last_id = $6, seen = $7::text::pg_snapshot, chunk_after = nullif($8::bigint, 0), chunk_seen = nullif($9, '')::pg_snapshot,
    moved_at = clock_timestamp(), lease_until = clock_timestamp() + $10::interval` + led

const renewLease = `
UPDATE outbox_cursors SET lease_until = clock_timestamp() + $5::interval` + led

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
	waiting       time.Time // since when events have been waiting for a leader whose lease runs out; zero: they are not
}

// elect tries to become leader. Not elected: nil and no error.
//
// A lease that was given back is free. One that has run out is free when there is something to do: a leader lets it lapse
// while it is idle, since renewing it would write to the log all night, and renews it before it sends again. So a standby
// gives it a little time for that: the last sixth of the lease, or as much from when events wait behind a lapsed one. A leader
// that works renews its lease long before.
func (c *candidate) elect(ctx context.Context) (*term, error) {
	ctx, cancel := context.WithTimeout(ctx, c.lease) // a connection may have died unseen
	defer cancel()
	var released, ending, lapsed bool
	var p Position
	err := c.db.QueryRow(ctx, lookAtLease, c.relay, c.patience()).Scan(&released, &ending, &lapsed, &p.Batches, &p.Last, &p.Seen, &p.ChunkAfter, &p.ChunkSeen)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = c.db.Exec(ctx, ensureCursor, c.relay)
		released = true
	}
	if err != nil {
		return nil, fmt.Errorf("look at lease: %w", err)
	}
	if !released {
		if wanted, err := c.wanted(ctx, ending, p); !wanted || !lapsed {
			return nil, err
		}
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
	c.waiting = time.Time{}
	return t, nil
}

// patience is for how long events wait until their leader must have noticed them.
func (c *candidate) patience() time.Duration { return c.lease / 6 }

// wanted says whether events have been waiting behind a lease that runs out for longer than its holder would need to notice them.
func (c *candidate) wanted(ctx context.Context, ending bool, p Position) (bool, error) {
	waits := false
	if ending {
		var err error
		if waits, err = c.waits(ctx, p); err != nil {
			return false, err
		}
	}
	switch {
	case !waits:
		c.waiting = time.Time{}
	case c.waiting.IsZero():
		c.waiting = time.Now()
	}
	return waits && time.Since(c.waiting) > c.patience(), nil
}

const anyBehind = `SELECT EXISTS (SELECT FROM outbox_events WHERE id > $1)`

// waits says whether there is anything to send behind p. Only when nothing is new are stragglers looked for: behind a long absence that takes long.
func (c *candidate) waits(ctx context.Context, p Position) (any bool, err error) {
	if err := c.db.QueryRow(ctx, anyBehind, p.Last).Scan(&any); err != nil {
		return false, fmt.Errorf("look for events: %w", err)
	}
	if any {
		return true, nil
	}
	var b batch
	if err := b.read(ctx, c.db, newStatements(1), 1, p); err != nil || b.n > 0 {
		return b.n > 0, err
	}
	return released(ctx, c.db, c.relay, p)
}

// move puts the cursor behind what the broker has acknowledged, and renews the lease. It waits no longer than the lease
// lasts: ctx may be without an end, and a connection may have died unseen.
func (t *term) move(ctx context.Context, p Position) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.update(ctx, "move cursor", moveCursor, p.Batches, p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen, t.lease)
	if err == nil {
		t.at = p
	}
	return err
}

// renew prolongs the lease, and waits no longer than it lasts.
func (t *term) renew(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.update(ctx, "renew lease", renewLease, t.lease)
}

func (t *term) update(ctx context.Context, doing, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, t.lease)
	defer cancel()
	begun := time.Now()
	tag, err := t.db.Exec(ctx, sql, append([]any{t.relay, t.token, t.holder, t.at.Batches}, args...)...)
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

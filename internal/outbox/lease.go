package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	// ErrRestored says that the cursor belongs to another database than the one it stands in, or that the outbox holds
	// transactions of the future: a restored backup or dump. Sending on would lose or repeat events in silence, so an
	// operator decides; see docs/operating.md.
	ErrRestored = errors.New("the database was restored, or is another one: see \"After a restore\" in docs/operating.md")

	// errFenced says that the cursor is not where this leader left it: another relay has become leader, or the connection
	// goes to another server now, a standby that was promoted without the newest transactions. What this leader remembers
	// counts no longer, the table does.
	errFenced = errors.New("the cursor was moved by somebody else: another relay leads, or the database failed over")

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
const leaseFree = `
SELECT lease_until < clock_timestamp() FROM outbox_cursors WHERE relay = $1`

const takeLease = `
UPDATE outbox_cursors SET holder = $2, lease_until = clock_timestamp() + $3::interval, fencing_token = fencing_token + 1
WHERE relay = $1 AND lease_until < clock_timestamp()
RETURNING fencing_token, last_id, seen::text, coalesce(chunk_after, 0), coalesce(chunk_seen::text, '')`

// A visible row has an xid below the snapshot's xmax, always; one that has not was written by a transaction of another
// database, and the cursor's comparisons of xids mean nothing. Reads the end of the index on (xid, id).
const guard = `
SELECT pg_is_in_recovery(),
       c.system_identifier <> s.system_identifier OR c.database_oid <> d.oid
       OR EXISTS (SELECT FROM outbox_events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
FROM outbox_cursors c, pg_control_system() s, pg_database d WHERE c.relay = $1 AND d.datname = current_database()`

// The fencing token stands in every WHERE: a leader that was replaced moves and renews nothing. And the cursor has to
// be where this leader believes it to be: after a failover that lost the newest transactions, ids that it has read are handed out
// again, for events that it has not.
const moveCursor = `
UPDATE outbox_cursors SET last_id = $3, seen = $4::text::pg_snapshot, chunk_after = nullif($5::bigint, 0), chunk_seen = nullif($6, '')::pg_snapshot,
    moved_at = clock_timestamp(), lease_until = clock_timestamp() + $7::interval
WHERE relay = $1 AND fencing_token = $2
  AND last_id = $8 AND seen::text = $9 AND coalesce(chunk_after, 0) = $10 AND coalesce(chunk_seen::text, '') = $11`

const renewLease = `
UPDATE outbox_cursors SET lease_until = clock_timestamp() + $3::interval
WHERE relay = $1 AND fencing_token = $2
  AND last_id = $4 AND seen::text = $5 AND coalesce(chunk_after, 0) = $6 AND coalesce(chunk_seen::text, '') = $7`

const releaseLease = `
UPDATE outbox_cursors SET lease_until = '-infinity' WHERE relay = $1 AND fencing_token = $2`

// term is one relay's time as leader.
type term struct {
	db    *pgxpool.Pool
	relay string
	lease time.Duration
	token int64    // fencing token
	at    Position // of the cursor, as the table has it
}

// elect tries to become leader. Not elected: nil and no error.
func elect(ctx context.Context, db *pgxpool.Pool, relay, holder string, lease time.Duration) (*term, error) {
	ctx, cancel := context.WithTimeout(ctx, lease) // a connection may have died unseen
	defer cancel()
	var free bool
	err := db.QueryRow(ctx, leaseFree, relay).Scan(&free)
	if errors.Is(err, pgx.ErrNoRows) {
		_, err = db.Exec(ctx, ensureCursor, relay)
		free = true
	}
	if err != nil {
		return nil, fmt.Errorf("look at lease: %w", err)
	}
	if !free {
		return nil, nil
	}
	var standby, restored bool
	if err := db.QueryRow(ctx, guard, relay).Scan(&standby, &restored); err != nil {
		return nil, fmt.Errorf("check database: %w", err)
	}
	switch {
	case standby:
		return nil, errStandby
	case restored:
		return nil, ErrRestored
	}
	t := &term{db: db, relay: relay, lease: lease}
	p := &t.at
	err = db.QueryRow(ctx, takeLease, relay, holder, lease).Scan(&t.token, &p.Last, &p.Seen, &p.ChunkAfter, &p.ChunkSeen)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil // another standby was faster
	}
	if err != nil {
		return nil, fmt.Errorf("take lease: %w", err)
	}
	return t, nil
}

// move puts the cursor behind what the broker has acknowledged, and renews the lease. It waits no longer than the lease
// lasts: ctx may be without an end, and a connection may have died unseen.
func (t *term) move(ctx context.Context, p Position) error {
	ctx, cancel := context.WithTimeout(ctx, t.lease)
	defer cancel()
	tag, err := t.db.Exec(ctx, moveCursor, t.relay, t.token, p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen, t.lease,
		t.at.Last, t.at.Seen, t.at.ChunkAfter, t.at.ChunkSeen)
	switch {
	case err != nil:
		return fmt.Errorf("move cursor: %w", err)
	case tag.RowsAffected() == 0:
		return errFenced
	}
	t.at = p
	return nil
}

// renew prolongs the lease, and waits no longer than it lasts.
func (t *term) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.lease)
	defer cancel()
	tag, err := t.db.Exec(ctx, renewLease, t.relay, t.token, t.lease, t.at.Last, t.at.Seen, t.at.ChunkAfter, t.at.ChunkSeen)
	switch {
	case err != nil:
		return fmt.Errorf("renew lease: %w", err)
	case tag.RowsAffected() == 0:
		return errFenced
	}
	return nil
}

// release ends the term early, so that a standby need not wait for the lease to run out. When it fails, it waits.
func (t *term) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = t.db.Exec(ctx, releaseLease, t.relay, t.token)
}

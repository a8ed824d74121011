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
	// ErrRestored says that the cursor belongs to another database, that the outbox holds
	// transactions of the future, or that the broker has events of this relay that the database
	// lacks: a restored backup or dump, or a standby promoted without the newest transactions.
	// Going on would silently lose or repeat events, so an operator decides; see docs/operating.md.
	ErrRestored = errors.New("the database was restored, or is another one: " +
		"see \"After a restore\" in docs/operating.md")

	// errMoved is the ErrRestored of an upgrade or a move, after which an operator calls Adopt.
	errMoved = fmt.Errorf("the cursor, or Kafka's record of it, is of another cluster: "+
		"after pg_upgrade or a move run `relay adopt`; otherwise %w", ErrRestored)

	// ErrFenced says that the cursor is not where this leader left it: another relay leads, or the
	// connection now goes to a standby that was promoted without the newest transactions. The table
	// is right.
	ErrFenced = errors.New("the cursor was moved: another relay leads, or the database failed over")

	errStandby = errors.New("the database is a standby, where running transactions are not visible")
)

// The first relay of a name inserts its row, at the beginning: everything that is kept is sent.
const ensureCursor = `
INSERT INTO outbox_cursors (relay, seen, system_identifier, database_oid)
SELECT $1, pg_current_snapshot(), s.system_identifier, d.oid
FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
ON CONFLICT DO NOTHING`

// A lease that was given back is -infinity. It is clock_timestamp() because now() is when the
// transaction began, before it may have waited for the row.
const takeLease = `
UPDATE outbox_cursors SET holder = $2, fencing_token = fencing_token + 1,
    lease_until = clock_timestamp() + $3::interval
WHERE relay = $1 AND lease_until < clock_timestamp()
RETURNING fencing_token, batches, last_id, seen::text,
    coalesce(chunk_after, 0), coalesce(chunk_seen::text, '')`

// timeline is that of the log being written: pg_control_checkpoint() shows it only after the next
// checkpoint. A standby writes none, so there it is an error.
const timeline = `('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint`

// Standbys look before they write, so waiting costs no WAL.
//
// A visible row always has an xid below the snapshot's xmax. One that has not comes from another
// database, where the cursor's xids mean nothing; the index on (xid, id) finds it.
const lookAtLease = `
SELECT c.lease_until < clock_timestamp(), pg_is_in_recovery(),
       c.system_identifier <> s.system_identifier OR c.database_oid <> d.oid,
       EXISTS (SELECT FROM outbox_events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())),
       c.system_identifier, c.database_oid, c.epoch::text, c.cursor_id::text,
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE ` + timeline + ` END
FROM outbox_cursors c, pg_control_system() s, pg_database d
WHERE c.relay = $1 AND d.datname = current_database()`

// The token stops a leader that was replaced. Batches and timeline stop one whose database failed
// over and lost the newest transactions: ids that it has read are given to events that it has not.
// Such a failover gives out tokens again, too, so holder is one run of one process. A lease that
// was given back stays given back, even if a late statement arrives. A renewal moves the cursor to
// where it is.
const moveCursor = `
UPDATE outbox_cursors SET batches = $7, last_id = $8, seen = $9::text::pg_snapshot,
    chunk_after = nullif($10::bigint, 0), chunk_seen = nullif($11, '')::pg_snapshot,
    moved_at = CASE batches WHEN $7 THEN moved_at ELSE clock_timestamp() END,
    lease_until = clock_timestamp() + $6::interval
WHERE relay = $1 AND fencing_token = $2 AND holder = $3 AND batches = $4 AND lease_until > '-infinity'
  AND ` + timeline + ` = $5`

const releaseLease = `
UPDATE outbox_cursors SET lease_until = '-infinity'
WHERE relay = $1 AND fencing_token = $2 AND holder = $3`

// term is one relay's time as leader.
type term struct {
	db            *pgxpool.Pool
	relay, holder string
	lease         time.Duration
	token         int64    // fencing token
	cursor        string   // id of the cursor's row
	identity      Progress // of the cursor and its database

	mu      sync.Mutex                // one statement at a time: each names where the cursor is
	at      Position                  // of the cursor, as the table has it
	renewed atomic.Pointer[time.Time] // the lease runs from here, or from a little later
}

// elect tries to become leader. It returns nil and no error when another relay leads.
func elect(
	ctx context.Context, db *pgxpool.Pool, relay, holder string, lease time.Duration,
) (*term, error) {
	ctx, cancel := context.WithTimeout(ctx, lease) // the connection may be dead
	defer cancel()

	begun := time.Now()
	t := &term{db: db, relay: relay, holder: holder, lease: lease}
	t.renewed.Store(&begun)

	var free, standby, moved, restored bool
	is := &t.identity
	look := func() error {
		return db.QueryRow(ctx, lookAtLease, relay).Scan(&free, &standby, &moved, &restored,
			&is.SystemIdentifier, &is.DatabaseOID, &is.Epoch, &t.cursor, &is.Timeline)
	}
	err := look()
	// The first relay of a name makes its cursor.
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err = db.Exec(ctx, ensureCursor, relay); err == nil {
			err = look()
		}
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("look at lease: %w", err)
	case !free:
		return nil, nil
	case standby:
		return nil, errStandby
	case moved:
		return nil, errMoved
	case restored:
		return nil, ErrRestored
	}

	taken, err := t.take(ctx)
	if err != nil || !taken {
		return nil, err // not taken: another standby was faster
	}
	return t, nil
}

// take takes the lease, unless it is not free.
func (t *term) take(ctx context.Context) (taken bool, err error) {
	// Crash point: with the lease taken and nothing done, the others wait until it has run out.
	err = t.db.QueryRow(ctx, takeLease, t.relay, t.holder, t.lease).
		Scan(&t.token, &t.at.Batches, &t.at.Last, &t.at.Seen, &t.at.ChunkAfter, &t.at.ChunkSeen)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take lease: %w", err)
	}

	return true, nil
}

// heartbeat renews the lease when a third of it has passed. It returns ErrFenced when another relay
// leads, another error when the lease ran out before it could be renewed, and nil when ctx ends.
func (t *term) heartbeat(ctx context.Context) error {
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

// renew extends the lease. It takes a third of it at most: the connection may be dead, and another
// one is tried next.
func (t *term) renew(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(ctx, t.lease/3, t.at)
}

// move puts the cursor at p, behind what the broker has acknowledged, and renews the lease.
func (t *term) move(ctx context.Context, p Position) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.put(ctx, max(t.remaining(), t.lease/3), p)
	if err == nil {
		t.at = p
	}

	return err
}

func (t *term) put(ctx context.Context, limit time.Duration, p Position) error {
	// The lease runs from before the statement: it may have waited.
	begun := time.Now()
	err := t.exec(ctx, limit, "move cursor", moveCursor,
		t.relay, t.token, t.holder, t.at.Batches, t.identity.Timeline, t.lease,
		p.Batches, p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen)
	if err == nil {
		t.renewed.Store(&begun)
	}

	return err
}

// exec runs a statement that affects no row unless this relay leads.
func (t *term) exec(
	ctx context.Context, limit time.Duration, doing, sql string, args ...any,
) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tag, err := t.db.Exec(ctx, sql, args...)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", doing, err)
	case tag.RowsAffected() == 0:
		return ErrFenced
	}

	return nil
}

// remaining returns how much of the lease is certainly left. It does not wait for a running
// statement.
func (t *term) remaining() time.Duration { return t.lease - time.Since(*t.renewed.Load()) }

// release gives the lease back. If that fails, a standby waits until the lease has run out.
func (t *term) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = t.db.Exec(ctx, releaseLease, t.relay, t.token, t.holder)
}

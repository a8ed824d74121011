package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrAdopted says that there is nothing to adopt: cursor and progress are this database's.
var ErrAdopted = errors.New("nothing to adopt: the cursor is this database's already")

var (
	errNoRecord = errors.New("Kafka has no record of this cursor: " +
		"are KAFKA_BROKERS, TOPIC_PREFIX and RELAY_NAME those that the relay had?")
	errOldIDs = errors.New("new events would get ids of old ones: the sequence of outbox_events.id " +
		`is behind; set it, see "Upgrade Postgres" in docs/operating.md`)
)

const (
	afterRestore = `see "After a restore" in docs/operating.md`
	// adoptLease is how long Adopt keeps every relay of the name from leading.
	adoptLease = time.Minute
)

// A cursor, and the server that it was found on. On a standby there is no timeline.
const lookAtCursor = `
SELECT c.system_identifier, c.database_oid, c.epoch::text, c.cursor_id::text,
       s.system_identifier, d.oid, CASE WHEN pg_is_in_recovery() THEN 0 ELSE ` + timeline + ` END,
       c.holder
FROM outbox_cursors c, pg_control_system() s, pg_database d
WHERE c.relay = $1 AND d.datname = current_database()`

// What must be so before ids and transaction ids of the cursor may be trusted here: transactions
// that are to come are behind all that the cursor has seen; no row is of a transaction of the
// future; new events get new ids.
const checkCounters = `
SELECT pg_snapshot_xmax(pg_current_snapshot()) >= greatest(pg_snapshot_xmax($2::text::pg_snapshot),
         pg_snapshot_xmax(nullif($3, '')::pg_snapshot)),
       NOT EXISTS (SELECT FROM outbox_events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())),
       coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox_events', 'id')::regclass), 0)
         >= greatest($1::bigint, (SELECT max(id) FROM outbox_events))`

// The identity and where the cursor really is, in one statement. It gives the lease back.
const adoptCursor = `
UPDATE outbox_cursors SET batches = $4, last_id = $5, seen = $6::text::pg_snapshot,
    chunk_after = nullif($7::bigint, 0), chunk_seen = nullif($8, '')::pg_snapshot,
    system_identifier = $9, database_oid = $10, lease_until = '-infinity'
WHERE relay = $1 AND fencing_token = $2 AND holder = $3 AND lease_until > clock_timestamp()`

// Adopt makes the cursor this cluster's, after pg_upgrade, which keeps everything that the cursor
// names but the cluster's identifier. It returns the last id behind the cursor, or what is wrong:
// then nothing has changed. No relay of the name may run.
//
// It is a term of a leader that sends nothing. So it refuses what a term refuses: a database that
// went back, since Kafka's progress is ahead by events that it lacks. And it ends what else may
// run: its progress is of this cluster, so a relay that runs on the old one finds that out
// when it next leads, and sends nothing more.
func (r *Relay) Adopt(ctx context.Context) (last int64, err error) {
	r.setDefaults()
	t, is, err := r.takeOver(ctx)
	if err != nil {
		return 0, err
	}
	defer t.release(ctx)

	publisher, kept, at, err := r.reached(ctx, t)
	if errors.Is(err, errNoRecord) && is.sameDatabase(t.identity) {
		return 0, ErrAdopted
	}
	if err != nil {
		return 0, err
	}
	defer publisher.Close()
	if is.sameDatabase(t.identity) && (kept == nil || kept.sameDatabase(is)) {
		return 0, ErrAdopted
	}

	var seen, past, fresh bool
	err = r.DB.QueryRow(ctx, checkCounters, at.Last, at.Seen, at.ChunkSeen).Scan(&seen, &past, &fresh)
	switch {
	case err != nil:
		return 0, fmt.Errorf("check the database's counters: %w", err)
	case !past || !seen:
		return 0, errors.New("the database counts transactions from behind the cursor: " +
			"pg_upgrade would not, so this is a dump or a copy: " + afterRestore)
	case !fresh:
		return 0, errOldIDs
	}

	// What progress says was sent is noted before other progress replaces it.
	if kept != nil {
		if err := t.sent(ctx, kept.Resent); err != nil {
			return 0, err
		}
	}
	// Crash point: between the two, no relay starts on either cluster, and Adopt can be called again.
	is.carry(kept, at)
	if err := publisher.Publish(ctx, nil, is); err != nil {
		return 0, fmt.Errorf("keep progress: %w", err)
	}
	return at.Last, t.exec(ctx, readTimeout, "adopt the cursor", adoptCursor, t.relay, t.token,
		t.holder, at.Batches, at.Last, at.Seen, at.ChunkAfter, at.ChunkSeen,
		is.SystemIdentifier, is.DatabaseOID)
}

// carry takes over what kept progress proves, so that a second call finds it proved again: the cursor
// may still be behind.
func (p *Progress) carry(kept *Progress, at Position) {
	p.Position = at
	if kept == nil {
		return
	}

	p.Resent = kept.Resent
	if at == kept.Position {
		p.Ahead = kept.Ahead
	}
}

// takeOver takes the lease of a cursor that may be of another cluster, and returns what the cursor's
// identity is to become.
func (r *Relay) takeOver(ctx context.Context) (t *term, is Progress, err error) {
	t = &term{db: r.DB, relay: r.Name, holder: r.Holder, lease: adoptLease}
	t.renewed.Store(new(time.Now()))
	was, holder := &t.identity, ""
	err = r.DB.QueryRow(ctx, lookAtCursor, r.Name).Scan(&was.SystemIdentifier, &was.DatabaseOID,
		&was.Epoch, &t.cursor, &is.SystemIdentifier, &is.DatabaseOID, &is.Timeline, &holder)
	is.Epoch, was.Timeline = was.Epoch, is.Timeline
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, is, fmt.Errorf("there is no cursor of a relay %q", r.Name)
	case err != nil:
		return nil, is, fmt.Errorf("look at the cursor: %w", err)
	case is.Timeline == 0:
		return nil, is, errors.New("the database is a standby: promote it, or use the primary's URL")
	case is.DatabaseOID != was.DatabaseOID:
		return nil, is, errors.New("the database is not the one of the cursor, by its OID, " +
			"which pg_upgrade keeps: " + afterRestore)
	}

	taken, err := t.take(ctx)
	if err == nil && !taken {
		err = fmt.Errorf("%s leads: stop every relay, and wait until its lease has run out", holder)
	}
	return t, is, err
}

// reached opens a Publisher for a term, which fences earlier ones, and returns how far the relay has
// come by the progress that was kept.
func (r *Relay) reached(
	ctx context.Context, t *term,
) (publisher Publisher, kept *Progress, at Position, err error) {
	opening, cancel := context.WithTimeout(ctx, adoptLease/2)
	defer cancel()
	publisher, kept, err = r.Open(opening, t.relay, t.cursor)
	if err != nil {
		return nil, nil, at, &BrokerError{err}
	}

	at = t.at
	switch {
	case kept != nil && kept.Epoch == t.identity.Epoch:
		at, err = t.reach(ctx, kept)
	case at.Batches > 0:
		err = errNoRecord
	default:
		kept = nil
	}
	if err != nil {
		publisher.Close()
		return nil, nil, at, err
	}
	return publisher, kept, at, nil
}

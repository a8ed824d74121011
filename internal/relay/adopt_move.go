package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What logical replication has made of this database. Ids are as they were; transaction ids are not,
// if they were published, and sequences stay where they are.
const lookAtCopy = `
SELECT s.system_identifier, d.oid, CASE WHEN pg_is_in_recovery() THEN 0 ELSE ` + timeline + ` END,
       EXISTS (SELECT FROM pg_subscription WHERE subdbid = d.oid),
       EXISTS (SELECT FROM outbox_events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())),
       coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox_events', 'id')::regclass), 0)
         >= greatest($2::bigint, (SELECT max(id) FROM outbox_events)),
       EXISTS (SELECT FROM outbox_cursors c WHERE relay = $1
         AND (cursor_id <> $3 AND batches > 0 OR cursor_id = $3 AND batches > $4)
         AND c.system_identifier = s.system_identifier AND c.database_oid = d.oid)
FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()`

// The newest events that were sent, at the source and here. An old one may be missing, too, if it was
// committed late and the link was cut before. The source has dropped its oldest days.
const (
	sentAtSource = `
SELECT coalesce(min(id), $1 + 1), count(*), coalesce(sum(id), 0)::text
FROM (SELECT id FROM outbox_events WHERE id <= $1 ORDER BY id DESC LIMIT 100000) o`

	sentHere = `
SELECT count(*), coalesce(sum(id), 0)::text FROM outbox_events WHERE id BETWEEN $1 AND $2`
)

// The cursor, in transaction ids of this cluster: all rows up to last_id are sent, and rows that
// are to come have higher ids, so no snapshot has to tell them apart.
const adoptMoved = `
INSERT INTO outbox_cursors AS c (relay, batches, last_id, seen, system_identifier, database_oid,
    epoch, cursor_id, fencing_token)
SELECT $1, $2, $3, format('%1$s:%1$s:', pg_snapshot_xmax(pg_current_snapshot()))::pg_snapshot,
       $4, $5, $6, $7, $8
ON CONFLICT (relay) DO UPDATE SET batches = $2, last_id = $3, seen = excluded.seen,
    chunk_after = NULL, chunk_seen = NULL, system_identifier = $4, database_oid = $5, epoch = $6,
    cursor_id = $7, fencing_token = greatest(c.fencing_token, $8), lease_until = '-infinity'
WHERE c.lease_until < clock_timestamp()`

// Dead letters that wait were behind the cursor there, and are here.
const adoptLetters = `
UPDATE outbox_dead_letters SET xid = '3',
    state = CASE WHEN id = ANY($3::bigint[]) AND state IN ('parked', 'retry') THEN 'sent' ELSE state END
WHERE relay = $1 AND id <= $2`

// AdoptFrom goes on where the relay of another cluster ended, whose tables logical replication has
// brought into this database. source is the old database; everything that it has must be sent. It
// returns the last id behind the cursor, or what is wrong: then nothing has changed here. Nothing may
// write to either database.
//
// The outbox must be published without its column xid: then its rows get transaction ids of this
// cluster. Rows with those of the old one would be sent again when this one's count comes by.
func (r *Relay) AdoptFrom(ctx context.Context, source *pgxpool.Pool) (last int64, err error) {
	r.setDefaults()
	if err := source.QueryRow(ctx, `SELECT FROM outbox_cursors WHERE relay = $1`, r.Name).Scan(); err != nil {
		if errors.Is(err, pgx.ErrNoRows) { // elect would make one
			err = fmt.Errorf("there is no cursor of a relay %q", r.Name)
		}
		return 0, fmt.Errorf("at the source: %w", err)
	}

	t, err := elect(ctx, source, r.Name, r.Holder, adoptLease)
	switch {
	case err != nil:
		return 0, fmt.Errorf("at the source: %w", err)
	case t == nil:
		return 0, errors.New("another relay leads at the source: " +
			"stop every relay, and wait until its lease has run out")
	}
	defer t.release(ctx)

	publisher, kept, at, err := r.reached(ctx, t)
	if err != nil {
		return 0, err
	}
	defer publisher.Close()

	if err := drained(ctx, source, at); err != nil {
		return 0, err
	}
	is, err := r.checkCopy(ctx, t, source, at)
	if err != nil {
		return 0, err
	}

	// Crash point: between the two, no relay starts on either cluster, and AdoptFrom can be called
	// again.
	is.Epoch = t.identity.Epoch
	is.carry(kept, at)
	var resent []int64
	if kept != nil {
		resent = kept.Resent
	}
	if err := publisher.Publish(ctx, nil, is); err != nil {
		return 0, fmt.Errorf("keep progress: %w", err)
	}
	return at.Last, pgx.BeginFunc(ctx, r.DB, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, adoptMoved, r.Name, at.Batches, at.Last,
			is.SystemIdentifier, is.DatabaseOID, is.Epoch, t.cursor, t.token)
		if err == nil && tag.RowsAffected() == 0 {
			return errors.New("a relay leads in this database: stop every relay")
		}
		if err == nil {
			_, err = tx.Exec(ctx, adoptLetters, r.Name, at.Last, resent)
		}
		if err != nil {
			return fmt.Errorf("adopt the cursor: %w", err)
		}
		return nil
	})
}

// drained returns an error unless everything in a database is sent, and nothing is being written.
func drained(ctx context.Context, db *pgxpool.Pool, at Position) error {
	if err := noWriters(ctx, db); err != nil {
		return fmt.Errorf("at the source: %w", err)
	}

	var unsent batch
	if err := unsent.read(ctx, db, 1, at); err != nil {
		return err
	}
	if unsent.n > 0 || at.ChunkSeen != "" {
		return errors.New("the source has events that are not sent: start its relay, " +
			"and wait until `oncepay outbox` shows none")
	}
	return nil
}

// checkCopy returns the identity of r.DB, or why it cannot go on for the source.
func (r *Relay) checkCopy(
	ctx context.Context, t *term, source *pgxpool.Pool, at Position,
) (is Progress, err error) {
	var subscribed, foreign, fresh, own bool
	err = r.DB.QueryRow(ctx, lookAtCopy, r.Name, at.Last, t.cursor, at.Batches).Scan(&is.SystemIdentifier,
		&is.DatabaseOID, &is.Timeline, &subscribed, &foreign, &fresh, &own)
	var first, want, found int64
	var wantSum, foundSum string
	if err == nil {
		err = source.QueryRow(ctx, sentAtSource, at.Last).Scan(&first, &want, &wantSum)
	}
	if err == nil {
		err = r.DB.QueryRow(ctx, sentHere, first, at.Last).Scan(&found, &foundSum)
	}
	switch {
	case err != nil:
		return is, fmt.Errorf("look at the outbox: %w", err)
	case is.sameDatabase(t.identity):
		return is, errors.New("this database is the source itself")
	case is.Timeline == 0:
		return is, errors.New("the database is a standby: promote it, or use the primary's URL")
	case subscribed:
		return is, errors.New("a subscription is still here: wait until it has everything, and drop it")
	case own:
		return is, fmt.Errorf("this database has a cursor %q of its own, which has sent events", r.Name)
	case foreign:
		return is, errors.New("outbox_events has transaction ids of the source: " +
			`publish it without its column xid, see "Upgrade Postgres" in docs/operating.md`)
	case found != want || foundSum != wantSum:
		return is, fmt.Errorf("of the newest %d events that the source has sent %d are here: "+
			"replication is not complete", want, found)
	case !fresh:
		return is, errOldIDs
	}

	// A late row of the subscription would look as if it were new.
	return is, noWriters(ctx, r.DB)
}

// noWriters waits until no transaction is open that has written: autovacuum's are short. Programs
// must have been stopped.
func noWriters(ctx context.Context, db *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settleTimeout, errors.New(
		"a transaction that has written is open: stop all programs, or see "+
			`"A transaction stays open" in docs/operating.md`))
	defer cancel()

	for ctx.Err() == nil {
		rows, _ := db.Query(ctx, openWriters) // CollectRows returns its error
		writers, err := pgx.CollectRows(rows, pgx.RowTo[string])
		switch {
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("look for open transactions: %w", err)
		case err == nil && len(writers) == 0:
			return nil
		}
		sleep(ctx, idlePoll)
	}
	return context.Cause(ctx)
}

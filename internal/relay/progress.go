package relay

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Progress is how far a relay has come, as a Publisher keeps it on the broker's side: everything up
// to Position is durable there. It names the history of Position, because a restored database has
// another one.
type Progress struct {
	SystemIdentifier int64  `json:"system_identifier"`
	DatabaseOID      uint32 `json:"database_oid"`
	Timeline         int64  `json:"timeline"` // of Postgres: a promotion or recovery begins one
	Epoch            string `json:"epoch"`    // of the cursor's row
	Position
	Ahead  []Ahead `json:"ahead,omitempty"`
	Resent []int64 `json:"resent,omitempty"` // dead letters that are durable with it
}

// Ahead sums up the events between one of the cursor's last places and the position of a Progress.
type Ahead struct {
	Batches int64  `json:"batches"` // of that place
	Events  int64  `json:"events"`
	Hash    uint64 `json:"hash,string"` // of the ids of those that are no dead letters, in any order
}

// add counts an event that is no dead letter.
func (a *Ahead) add(event uuid.UUID) {
	a.Events++
	a.Hash += mix(mix(binary.BigEndian.Uint64(event[:8])) ^ binary.BigEndian.Uint64(event[8:]))
}

// mix is the finalizer of MurmurHash3: sums of ids themselves would agree for 1 and 4, and 2 and 3.
// A cryptographic hash takes 110 ns an event, this one 3.
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// maxMarks is how many moves of the cursor a promoted standby may lack and still be recognised, if
// it has all events.
const maxMarks = 8

// The events that the second position has passed and the first has not, found as behind
// does. Rows that the second position's snapshots do not show are left out by the index: they may be
// all that was written in an absence of days. An event that was passed and not sent is a dead letter.
// If the database lost that, nothing would ever send it.
const readBetween = `
SELECT event_id, EXISTS (SELECT FROM outbox_dead_letters d
                         WHERE d.relay = $9 AND d.id = o.id AND d.state <> 'sent') FROM (
  SELECT id, xid, event_id FROM outbox_events WHERE id > $1 AND id <= $5
  UNION ALL
  SELECT o.* FROM unnest(ARRAY(SELECT pg_snapshot_xip($2::text::pg_snapshot))) x(xid)
  CROSS JOIN LATERAL (SELECT id, xid, event_id FROM outbox_events
                      WHERE xid >= x.xid AND xid <= x.xid AND id <= $1 ORDER BY xid, id OFFSET 0) o
  UNION ALL
  (SELECT id, xid, event_id FROM outbox_events
   WHERE xid >= pg_snapshot_xmax($2::text::pg_snapshot) AND id <= $1
     AND xid < greatest(pg_snapshot_xmax($6::text::pg_snapshot),
                        pg_snapshot_xmax(nullif($8, '')::pg_snapshot)) ORDER BY xid, id OFFSET 0)) o
WHERE (id <= $5 AND pg_visible_in_snapshot(xid, $6::text::pg_snapshot)
       OR id <= $7 AND pg_visible_in_snapshot(xid, nullif($8, '')::pg_snapshot))
  AND (id > $3 OR NOT pg_visible_in_snapshot(xid, nullif($4, '')::pg_snapshot))`

// between sums up the events that p has not passed and q has.
func (t *term) between(ctx context.Context, p, q Position) (Ahead, error) {
	ahead, id, letter := Ahead{Batches: p.Batches}, uuid.UUID{}, false
	rows, _ := t.db.Query(ctx, readBetween, // ForEachRow returns its error
		p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen, q.Last, q.Seen, q.ChunkAfter, q.ChunkSeen, t.relay)
	_, err := pgx.ForEachRow(rows, []any{&id, &letter}, func() error {
		if letter {
			ahead.Events++
		} else {
			ahead.add(id)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("compare progress with the database: %w", err)
	}

	return ahead, err
}

// begin moves the cursor to where the term begins. Progress of another cluster or database is of
// one that this was upgraded or moved from, or to: what is right there may be wrong here.
func (t *term) begin(ctx context.Context, kept *Progress) error {
	if kept == nil || kept.Epoch != t.identity.Epoch {
		return nil
	}
	if !kept.sameDatabase(t.identity) {
		return errMoved
	}

	at, err := t.reach(ctx, kept)
	if err != nil {
		return err
	}
	if at != t.at {
		if err := t.move(ctx, at); err != nil {
			return err
		}
	}

	return t.sent(ctx, kept.Resent)
}

// reach returns how far the cursor's relay has come. If kept progress is ahead of the cursor, the
// broker has the events in between, and only moves of the cursor were lost, by a crash or a failover.
//
// Kept progress is also the only witness of a database that went back to an earlier state: the
// whole table did. Events that consumers have seen are gone then, and new events have their ids. So
// the events that progress is ahead by must be exactly those that were sent, and dead letters, or
// reach returns ErrRestored.
func (t *term) reach(ctx context.Context, kept *Progress) (Position, error) {
	if kept.Batches <= t.at.Batches {
		return t.at, nil
	}

	// Exactly what was sent must be there, or the database went back.
	ahead, err := t.between(ctx, t.at, kept.Position)
	if err != nil {
		return t.at, err
	}
	if !slices.Contains(kept.Ahead, ahead) {
		return t.at, ErrRestored
	}

	return kept.Position, nil
}

func (p *Progress) sameDatabase(q Progress) bool {
	return p.SystemIdentifier == q.SystemIdentifier && p.DatabaseOID == q.DatabaseOID
}

// progress returns p as a Publisher keeps it.
func (t *term) progress(p Position) Progress {
	kept := t.identity
	kept.Position = p
	return kept
}

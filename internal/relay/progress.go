package relay

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Progress is how far a relay has come, in the words that a Publisher keeps on the broker's side: everything up to Position is
// durable there. It says which history Position belongs to, because a database that was restored has another one.
type Progress struct {
	SystemIdentifier int64  `json:"system_identifier"`
	DatabaseOID      uint32 `json:"database_oid"`
	Timeline         int64  `json:"timeline"` // of Postgres: a new one begins with every promotion and every recovery to a point in time
	Epoch            string `json:"epoch"`    // of the cursor's row
	Position
	Ahead  []Ahead `json:"ahead,omitempty"`
	Resent []int64 `json:"resent,omitempty"` // dead letters that are durable with it
}

// Ahead is what lies between one of the last places of the cursor and the position of a Progress.
type Ahead struct {
	Batches int64  `json:"batches"` // of that place
	Events  int64  `json:"events"`
	Hash    uint64 `json:"hash,string"` // of their ids, whatever their order
}

func (a *Ahead) add(event uuid.UUID) {
	hash := sha256.Sum256(event[:])
	a.Events++
	a.Hash += binary.BigEndian.Uint64(hash[:])
}

// mostMarks is how many moves of the cursor a promoted standby may lack, one after the other, and be recognised although it has all events.
const mostMarks = 8

// The events that the second position has passed and the first one has not. They are looked for as newStatements does, and a position
// has passed what its snapshots show up to its ids.
const readBetween = `
SELECT event_id FROM (
  SELECT id, xid, event_id FROM outbox_events WHERE id > $1 AND id <= $5
  UNION ALL
  SELECT o.* FROM unnest(ARRAY(SELECT pg_snapshot_xip($2::text::pg_snapshot))) x(xid)
  CROSS JOIN LATERAL (SELECT id, xid, event_id FROM outbox_events WHERE xid >= x.xid AND xid <= x.xid AND id <= $1 ORDER BY xid, id OFFSET 0) o
  UNION ALL
  (SELECT id, xid, event_id FROM outbox_events
   WHERE xid >= pg_snapshot_xmax($2::text::pg_snapshot) AND xid < pg_snapshot_xmax(pg_current_snapshot()) AND id <= $1 ORDER BY xid, id OFFSET 0)) o
WHERE (id <= $5 AND pg_visible_in_snapshot(xid, $6::text::pg_snapshot) OR id <= $7 AND pg_visible_in_snapshot(xid, nullif($8, '')::pg_snapshot))
  AND (id > $3 OR NOT pg_visible_in_snapshot(xid, nullif($4, '')::pg_snapshot))`

// between sums up the events that p has not passed and q has.
func (t *term) between(ctx context.Context, p, q Position) (Ahead, error) {
	ahead, id := Ahead{Batches: p.Batches}, uuid.UUID{}
	rows, _ := t.db.Query(ctx, readBetween, p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen, q.Last, q.Seen, q.ChunkAfter, q.ChunkSeen)
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		ahead.add(id)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("compare progress with the database: %w", err)
	}
	return ahead, err
}

// begin returns where a term begins: where the cursor stands or, when kept progress is ahead of it, there: what is behind
// that is on the broker already, and only the cursor's moves were lost, by a crash or by a failover.
//
// Kept progress is also the only witness of a database that went back, to a backup, a point in time or a standby that lacked the
// newest transactions. The table cannot tell: it went back as a whole. Then clients were told of payments, and consumers of events,
// that are gone, and new events have the ids of lost ones. So the events that progress is ahead by have to be exactly those that were
// sent. ErrRestored: an operator decides.
func (t *term) begin(ctx context.Context, kept *Progress) error {
	if kept == nil || kept.Epoch != t.is.Epoch {
		return nil
	}
	if kept.Batches > t.at.Batches {
		if kept.SystemIdentifier != t.is.SystemIdentifier || kept.DatabaseOID != t.is.DatabaseOID {
			return ErrRestored
		}
		ahead, err := t.between(ctx, t.at, kept.Position)
		if err != nil {
			return err
		}
		if !slices.Contains(kept.Ahead, ahead) {
			return ErrRestored
		}
		if err := t.move(ctx, kept.Position); err != nil {
			return err
		}
	}
	return t.sent(ctx, kept.Resent)
}

// progress returns p in the words that a Publisher keeps.
func (t *term) progress(p Position) Progress {
	is := t.is
	is.Position = p
	return is
}

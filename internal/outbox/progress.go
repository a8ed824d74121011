package outbox

import (
	"context"
	"fmt"
)

// Progress is how far a relay has come, in the words that a Publisher keeps on the broker's side: everything up to Position is
// durable there. It says which history Position belongs to, because a database that was restored has another one.
type Progress struct {
	SystemIdentifier int64  `json:"system_identifier"`
	DatabaseOID      uint32 `json:"database_oid"`
	Timeline         int64  `json:"timeline"` // of Postgres: a new one begins with every promotion and every recovery to a point in time
	Epoch            string `json:"epoch"`    // of the cursor's row
	Position
	Resent []int64 `json:"resent,omitempty"` // dead letters that are durable with it
}

// inHand is by how many batches kept progress may be ahead of the cursor when a relay has crashed: one was acknowledged and its
// move was under way, the next was acknowledged as well. See Relay.lead.
const inHand = 2

// The xmax of the snapshot of a position, of which another server knows nothing.
const future = `
SELECT pg_snapshot_xmax($1::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot())`

// begin returns where a term begins: where the cursor stands or, when kept progress is ahead of it, there: what is behind
// that is on the broker already, and only the cursor's move was lost.
//
// Kept progress is also the only witness of a database that went back, to a backup, a point in time or a standby that lacked the
// newest transactions. The table cannot tell: it went back as a whole. Then clients were told of payments, and consumers of events,
// that are gone, and new events have the ids of lost ones. ErrRestored: an operator decides.
func (t *term) begin(ctx context.Context, kept *Progress) error {
	if kept == nil || kept.Epoch != t.is.Epoch {
		return nil
	}
	if kept.Batches <= t.at.Batches {
		return t.sent(ctx, kept.Resent)
	}
	if kept.SystemIdentifier != t.is.SystemIdentifier || kept.DatabaseOID != t.is.DatabaseOID || kept.Timeline != t.is.Timeline ||
		kept.Batches > t.at.Batches+inHand {
		return ErrRestored
	}
	var restored bool
	if err := t.db.QueryRow(ctx, future, kept.Seen).Scan(&restored); err != nil {
		return fmt.Errorf("compare progress with the database: %w", err)
	}
	if restored {
		return ErrRestored
	}
	if err := t.move(ctx, kept.Position); err != nil {
		return err
	}
	return t.sent(ctx, kept.Resent)
}

// progress returns p in the words that a Publisher keeps.
func (t *term) progress(p Position) Progress {
	is := t.is
	is.Position = p
	return is
}

package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Position says what has been read: everything that snapshot Seen shows up to id Last, and, while more stragglers than a
// batch holds go out in chunks, those of them up to ChunkAfter that ChunkSeen shows.
type Position struct {
	Last       int64
	Seen       string // a pg_snapshot: xmin:xmax:xip
	ChunkAfter int64
	ChunkSeen  string // empty: not in chunks
}

// Message is an event as it was read, on its way to the broker.
type Message struct {
	ID               int64 // the row's place in the outbox
	EventID          uuid.UUID
	AggregateType    string
	AggregateID      string
	AggregateVersion *int64 // nil: the writer keeps none
	Type             string
	Payload          []byte
	Headers          map[string]any // as they are in the row
	CreatedAt        time.Time
}

const columns = `id, xid, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers, created_at`

// reader has the two statements of the cursor for one batch size: limits are literals, so that the planner knows them.
type reader struct {
	limit          int
	batch, chunked string
}

// newReader writes the statements. Rows and snapshot come from one statement, so they belong together.
//
// New rows: id > last, limited. Stragglers: id <= last, and invisible in seen. These are the rows whose transaction was
// running then (its xid is in xip) or has finished later (xid >= xmax; xmax is one more than the last COMPLETED xid, so a
// transaction that was running above it is not in xip). One straggler more than a batch is asked for, to know that there
// are more. Each branch is a short range of an index on every partition: (id), or (xid, id). The natural form, NOT
// pg_visible_in_snapshot(xid, seen), reads the whole table (measured at 3 million rows: 160 to 1,100 ms against 0.2 to 0.6).
// A transaction's rows are asked for as a range of one xid: with =, their order would be that of (id) as well, and where a table has few
// transactions Postgres goes through all ids for them.
//
// While stragglers go out in chunks their set must not change, or one that commits meanwhile below ChunkAfter would be
// lost: only those are taken that the snapshot of the first chunk shows, and no new rows.
func newReader(limit int) reader {
	straggling := func(chunk string) string {
		return fmt.Sprintf(`
  (SELECT s.* FROM (
     SELECT o.* FROM unnest(ARRAY(SELECT pg_snapshot_xip($2::text::pg_snapshot))) x(xid)
       CROSS JOIN LATERAL (SELECT %[1]s FROM outbox_events
                           WHERE xid >= x.xid AND xid <= x.xid AND id <= $1%[3]s ORDER BY xid, id LIMIT %[2]d) o
     UNION ALL
     (SELECT %[1]s FROM outbox_events
      WHERE xid >= pg_snapshot_xmax($2::text::pg_snapshot) AND xid < pg_snapshot_xmax(pg_current_snapshot())
        AND id <= $1%[3]s ORDER BY xid, id OFFSET 0)) s
   ORDER BY id LIMIT %[2]d)`, columns, limit+1, chunk)
	}
	selected := `SELECT pg_current_snapshot()::text, u.id, u.event_id, u.aggregate_type, u.aggregate_id, u.aggregate_version,
  u.event_type, u.payload, u.headers, u.created_at FROM (`
	return reader{
		limit: limit,
		batch: selected + fmt.Sprintf(`
  (SELECT %s FROM outbox_events WHERE id > $1 ORDER BY id LIMIT %d)
  UNION ALL`, columns, limit) + straggling("") + `) u ORDER BY u.id`,
		chunked: selected +
			straggling(` AND id > $3 AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)`) + `) u ORDER BY u.id`,
	}
}

const readTimeout = 10 * time.Second // a connection may have died unseen

// read returns the batch behind position p in the order it must be sent, and the position behind that batch. An empty
// batch leaves the position as it is, unless it ended a run of chunks.
func (r reader) read(ctx context.Context, db *pgxpool.Pool, p Position) ([]Message, Position, error) {
	query, args := r.batch, []any{p.Last, p.Seen}
	if p.ChunkSeen != "" {
		query, args = r.chunked, []any{p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var snapshot string
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return nil, p, fmt.Errorf("read outbox: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Message, err error) {
		return m, row.Scan(&snapshot, &m.ID, &m.EventID, &m.AggregateType, &m.AggregateID, &m.AggregateVersion,
			&m.Type, &m.Payload, &m.Headers, &m.CreatedAt)
	})
	if err != nil {
		return nil, p, fmt.Errorf("read outbox: %w", err)
	}
	batch, next := advance(p, found, snapshot, r.limit)
	return batch, next, nil
}

// advance decides what of the rows found behind p is sent now and where the cursor stands then. The limit never cuts a
// straggler off that the next position would take for seen.
func advance(p Position, found []Message, snapshot string, limit int) ([]Message, Position) {
	stragglers := 0
	for stragglers < len(found) && found[stragglers].ID <= p.Last {
		stragglers++
	}
	chunked := p.ChunkSeen != ""
	switch {
	case stragglers > limit: // more than a batch of them: the first chunk, or the next
		batch := found[:limit]
		p.ChunkAfter = batch[limit-1].ID
		if !chunked {
			p.ChunkSeen = snapshot
		}
		return batch, p
	case chunked: // the last chunk: now all that ChunkSeen shows up to Last is sent
		return found, Position{Last: p.Last, Seen: p.ChunkSeen}
	case len(found) == 0:
		return nil, p
	}
	return found, Position{Last: max(p.Last, found[len(found)-1].ID), Seen: snapshot}
}

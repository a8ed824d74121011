package relay

import (
	"fmt"
)

// Position says what has been read: everything that snapshot Seen shows up to id Last, and, while more stragglers than a
// batch holds go out in chunks, those of them up to ChunkAfter that ChunkSeen shows.
type Position struct {
	Batches    int64  `json:"batches"` // how many batches lie behind it; of two positions of one cursor, the one with more is ahead
	Last       int64  `json:"last_id"`
	Seen       string `json:"seen"` // a pg_snapshot: xmin:xmax:xip
	ChunkAfter int64  `json:"chunk_after,omitempty"`
	ChunkSeen  string `json:"chunk_seen,omitempty"` // empty: not in chunks
}

const columns = `id, xid, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers, created_at`

// statements are the two of the cursor for one batch size: limits are literals, so that the planner knows them.
type statements struct {
	batch, chunked string
}

// newStatements writes them. Rows and snapshot come from one statement, so they belong together.
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
func newStatements(limit int) statements {
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
  u.event_type, u.payload, u.headers::text, u.created_at FROM (`
	return statements{
		batch: selected + fmt.Sprintf(`
  (SELECT %s FROM outbox_events WHERE id > $1 ORDER BY id LIMIT %d)
  UNION ALL`, columns, limit) + straggling("") + `) u ORDER BY u.id`,
		chunked: selected +
			straggling(` AND id > $3 AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)`) + `) u ORDER BY u.id`,
	}
}

// behind returns the statement that finds what comes behind p, and its arguments.
func (s statements) behind(p Position) (query string, args []any) {
	if p.ChunkSeen != "" {
		return s.chunked, []any{p.Last, p.Seen, p.ChunkAfter, p.ChunkSeen}
	}
	return s.batch, []any{p.Last, p.Seen}
}

// advance returns where the cursor stands when the first n of the messages found behind p are sent, wherever that cuts
// them: a straggler that is left is one of the next position, too.
func advance(p Position, found []Message, n int, snapshot string) Position {
	chunked, p2 := p.ChunkSeen != "", p
	p2.Batches++
	switch {
	case n < len(found) && found[n].ID <= p.Last: // stragglers are left: what is sent is a chunk of them
		if n == 0 {
			return p
		}
		p2.ChunkAfter = found[n-1].ID
		if !chunked {
			p2.ChunkSeen = snapshot
		}
	case chunked: // the last chunk: now all that ChunkSeen shows up to Last is sent
		p2.Seen, p2.ChunkAfter, p2.ChunkSeen = p.ChunkSeen, 0, ""
	case n == 0:
		return p
	default:
		p2.Last, p2.Seen = max(p.Last, found[n-1].ID), snapshot
	}
	return p2
}

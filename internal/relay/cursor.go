package relay

import "fmt"

// Position is where a cursor is; doc.go explains it. Everything that snapshot Seen shows up to id
// Last has been read, and while stragglers go out in chunks, those up to ChunkAfter that ChunkSeen
// shows.
type Position struct {
	Batches    int64  `json:"batches"` // read so far: says which of two positions is ahead
	Last       int64  `json:"last_id"`
	Seen       string `json:"seen"` // a pg_snapshot: xmin:xmax:xip
	ChunkAfter int64  `json:"chunk_after,omitempty"`
	ChunkSeen  string `json:"chunk_seen,omitempty"` // empty: not in chunks
}

const columns = `id, xid, event_id, aggregate_type, aggregate_id, aggregate_version,
  event_type, payload, headers, created_at`

// behind returns the statement that reads up to limit messages behind p, and its arguments. Rows and
// snapshot come from one statement, so they belong together. The limit is a literal, which the
// planner knows.
//
// Stragglers are rows with id <= last that seen does not show: their transaction was running then
// (its xid is in xip), or has finished since (xid >= xmax). xmax is one more than the last
// COMPLETED xid, so a transaction running above it is not in xip. One straggler more than a batch
// holds shows that there are more.
//
// Each branch is a short range of an index of every partition: (id), or (xid, id). The natural
// form, NOT pg_visible_in_snapshot(xid, seen), reads the whole table: 160 to 1,100 ms at 3 million
// rows, against 0.2 to 0.6. One xid is asked for as a range: with =, the planner may take the index
// on (id), and read all of it.
//
// In chunks, the set of stragglers must not change, or one that commits below ChunkAfter would be
// lost: only those that the first chunk's snapshot shows are read.
func behind(p Position, limit int) (sql string, args []any) {
	const selected = `SELECT (SELECT pg_current_snapshot()::text), (SELECT ` + timeline + `), u.id, u.event_id,
  u.aggregate_type, u.aggregate_id, u.aggregate_version, u.event_type, u.payload, u.headers::text, u.created_at FROM (`
	args = []any{p.Last, p.Seen}
	// Between chunks new rows wait, and the set of stragglers is that of the first chunk.
	fresh, chunk := fmt.Sprintf(`
  (SELECT %s FROM outbox_events WHERE id > $1 ORDER BY id LIMIT %d)
  UNION ALL`, columns, limit), ""
	if p.ChunkSeen != "" {
		args = append(args, p.ChunkAfter, p.ChunkSeen)
		fresh, chunk = "", ` AND id > $3 AND pg_visible_in_snapshot(xid, $4::text::pg_snapshot)`
	}

	return fmt.Sprintf(selected+fresh+`
  (SELECT s.* FROM (
     SELECT o.* FROM unnest(ARRAY(SELECT pg_snapshot_xip($2::text::pg_snapshot))) x(xid)
       CROSS JOIN LATERAL (SELECT %[1]s FROM outbox_events
                           WHERE xid >= x.xid AND xid <= x.xid AND id <= $1%[3]s
                           ORDER BY xid, id LIMIT %[2]d) o
     UNION ALL
     (SELECT %[1]s FROM outbox_events
      WHERE xid >= pg_snapshot_xmax($2::text::pg_snapshot)
        AND xid < pg_snapshot_xmax(pg_current_snapshot()) AND id <= $1%[3]s ORDER BY xid, id OFFSET 0)) s
   ORDER BY id LIMIT %[2]d)) u ORDER BY u.id`, columns, limit+1, chunk), args
}

// advance returns where the cursor is when the first n of the messages found behind p are sent. It
// may cut them anywhere: a straggler that is left is one of the next position, too.
func advance(p Position, found []Message, n int, snapshot string) Position {
	chunked, p2 := p.ChunkSeen != "", p
	p2.Batches++

	switch {
	case n < len(found) && found[n].ID <= p.Last: // stragglers are left: a chunk is sent
		if n == 0 {
			return p
		}
		p2.ChunkAfter = found[n-1].ID
		if !chunked {
			p2.ChunkSeen = snapshot
		}
	case chunked: // the last chunk: all that ChunkSeen shows up to Last is sent
		p2.Seen, p2.ChunkAfter, p2.ChunkSeen = p.ChunkSeen, 0, ""
	case n == 0:
		return p
	default:
		p2.Last, p2.Seen = max(p.Last, found[n-1].ID), snapshot
	}

	return p2
}

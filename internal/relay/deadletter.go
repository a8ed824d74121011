package relay

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An event that the broker refuses becomes a dead letter, and its aggregate is parked: events
// behind it become dead letters as well, which keeps their order. All other aggregates flow. An
// operator decides on each refused event, retry or skip. Once all of an aggregate are decided on,
// it is released: the leader ends its term, and the next one begins by sending what was parked, in
// order.

// aggregate is what events are ordered by.
type aggregate struct{ kind, id string }

func (m *Message) aggregate() aggregate { return aggregate{m.AggregateType, m.AggregateID} }

// refusal is an event that the broker will not take.
type refusal struct {
	id        int64
	reason    string
	wentAhead []uuid.UUID // later events of its aggregate that are on the topic already
}

// The row shows that this relay leads, and stays locked until the dead letters are there: the next
// leader sees them all.
const lockCursor = `
SELECT FROM outbox_cursors WHERE relay = $1 AND fencing_token = $2 AND holder = $3 FOR SHARE`

// A batch that is read again finds its dead letters there. LATERAL makes each use the index on id.
const parkEvents = `
INSERT INTO outbox_dead_letters (
  relay, id, xid, event_id, aggregate_type, aggregate_id, aggregate_version,
  event_type, payload, headers, created_at)
SELECT $1, o.id, o.xid, o.event_id, o.aggregate_type, o.aggregate_id, o.aggregate_version,
       o.event_type, o.payload, o.headers, o.created_at
FROM unnest($2::bigint[]) t(id)
CROSS JOIN LATERAL (SELECT * FROM outbox_events WHERE id = t.id LIMIT 1) o
ON CONFLICT DO NOTHING`

const markRefused = `
UPDATE outbox_dead_letters SET refusal = $3, went_ahead = $4, state = 'parked'
WHERE relay = $1 AND id = $2`

const markSent = `
UPDATE outbox_dead_letters SET state = 'sent', resolved_at = clock_timestamp()
WHERE relay = $1 AND id = ANY($2::bigint[]) AND state IN ('parked', 'retry')`

// Dead letters that an operator has released and that the cursor has passed. It will read the
// others, park them once more, and pass them then.
const releasedLetters = `
FROM outbox_dead_letters d
WHERE relay = $1 AND state IN ('parked', 'retry')
  AND id <= $2 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot)
  AND NOT EXISTS (SELECT FROM outbox_dead_letters
                  WHERE relay = $1 AND aggregate_type = d.aggregate_type
                    AND aggregate_id = d.aggregate_id AND state = 'parked' AND refusal IS NOT NULL)`

const anyReleased = `SELECT EXISTS (SELECT ` + releasedLetters + `)`

const readReleased = `
SELECT '', 0::bigint, id, event_id, aggregate_type, aggregate_id, aggregate_version, event_type,
       payload, headers::text, created_at` + releasedLetters + `
ORDER BY id LIMIT $4`

const parkedAggregates = `
SELECT aggregate_type, aggregate_id, min(id) FROM outbox_dead_letters
WHERE relay = $1 AND state IN ('parked', 'retry') GROUP BY 1, 2`

const skippedLetters = `
SELECT id FROM outbox_dead_letters
WHERE relay = $1 AND state = 'skipped'
  AND NOT (id <= $2 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot))`

// park makes dead letters of events before the position passes them, and notes why one was refused.
func (t *term) park(ctx context.Context, ids []int64, refused *refusal) error {
	return t.whileLeading(ctx, "park events", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, parkEvents, t.relay, ids); err != nil || refused == nil {
			return err
		}
		_, err := tx.Exec(ctx, markRefused, t.relay, refused.id, refused.reason, refused.wentAhead)
		return err
	})
}

// sent notes that the broker now has these dead letters.
func (t *term) sent(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	return t.whileLeading(ctx, "mark dead letters", func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, markSent, t.relay, ids)
		return err
	})
}

// whileLeading runs do in a transaction that no other leader's term can overlap.
func (t *term) whileLeading(
	ctx context.Context, doing string, do func(context.Context, pgx.Tx) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, t.db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, lockCursor, t.relay, t.token, t.holder)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return ErrFenced
		}
		return do(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}

	return nil
}

// released reports whether dead letters wait to be sent by a relay at position p.
func released(ctx context.Context, db *pgxpool.Pool, relay string, p Position) (bool, error) {
	var any bool
	if p.ChunkSeen != "" {
		return false, nil // what it has passed is known after the last chunk
	}

	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := db.QueryRow(ctx, anyReleased, relay, p.Last, p.Seen).Scan(&any); err != nil {
		return false, fmt.Errorf("look for released dead letters: %w", err)
	}

	return any, nil
}

// readReleased fills b with dead letters that wait to be sent, in order.
func (t *term) readReleased(ctx context.Context, b *batch, limit int) error {
	args := []any{t.relay, t.at.Last, t.at.Seen, limit + 1}
	err := b.query(ctx, t.db, readTimeout, limit, readReleased, args...)
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	return nil
}

// parked returns the aggregates of which nothing is sent, and from which id on.
func (t *term) parked(ctx context.Context) (map[aggregate]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	aggregates, one, from := map[aggregate]int64{}, aggregate{}, int64(0)
	rows, _ := t.db.Query(ctx, parkedAggregates, t.relay) // ForEachRow returns its error
	_, err := pgx.ForEachRow(rows, []any{&one.kind, &one.id, &from}, func() error {
		aggregates[one] = from
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for parked aggregates: %w", err)
	}

	return aggregates, nil
}

// skipped returns the events that an operator gave up before the cursor passed them.
func (t *term) skipped(ctx context.Context) (map[int64]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	skipped, id := map[int64]bool{}, int64(0)
	rows, _ := t.db.Query(ctx, skippedLetters, t.relay, t.at.Last, t.at.Seen) // see parked
	_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
		skipped[id] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for skipped events: %w", err)
	}

	return skipped, nil
}

package relay

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// An event that the broker refuses becomes a dead letter, and its aggregate is parked: events
// behind it become dead letters as well, which keeps their order. All other aggregates flow. An
// operator decides on each refused event, retry or skip. Once all of an aggregate are decided on,
// it is released: the leader ends its term, and the next one begins by sending what was parked, in
// order.

// aggregate is what events are ordered by.
type aggregate struct{ kind, id string }

func (m *Message) aggregate() aggregate { return aggregate{m.AggregateType, m.AggregateID} }

// The row shows that this relay leads, and stays locked until the statement has committed: the next
// leader sees all dead letters. A statement that changes nothing else still returns it.
const whileLeading = `leads AS (
  SELECT FROM outbox_cursors WHERE relay = $1 AND fencing_token = $2 AND holder = $3 FOR SHARE),
letters AS (`

// A batch that is read again finds its dead letters there. LATERAL makes each use the index on id.
const parkEvents = `WITH ` + whileLeading + `
  INSERT INTO outbox_dead_letters (
    relay, id, xid, event_id, tenant_id, aggregate_type, aggregate_id, aggregate_version,
    event_type, payload, headers, created_at)
  SELECT $1, o.id, o.xid, o.event_id, o.tenant_id, o.aggregate_type, o.aggregate_id,
         o.aggregate_version, o.event_type, o.payload, o.headers, o.created_at
  FROM leads CROSS JOIN unnest($4::bigint[]) t(id)
  CROSS JOIN LATERAL (SELECT * FROM outbox_events WHERE id = t.id LIMIT 1) o
  ON CONFLICT DO NOTHING)
SELECT FROM leads`

const markRefused = `WITH ` + whileLeading + `
  UPDATE outbox_dead_letters SET refusal = $5, went_ahead = $6, state = 'parked'
  FROM leads WHERE relay = $1 AND id = $4)
SELECT FROM leads`

const markSent = `WITH ` + whileLeading + `
  UPDATE outbox_dead_letters SET state = 'sent', resolved_at = clock_timestamp()
  FROM leads WHERE relay = $1 AND id = ANY($4::bigint[]) AND state IN ('parked', 'retry'))
SELECT FROM leads`

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

// What is not sent: aggregates that are parked, from which id on, and events that an operator gave
// up before the cursor passed them.
const heldEvents = `
SELECT aggregate_type, aggregate_id, min(id), false FROM outbox_dead_letters
WHERE relay = $1 AND state IN ('parked', 'retry') GROUP BY 1, 2
UNION ALL
SELECT aggregate_type, aggregate_id, id, true FROM outbox_dead_letters
WHERE relay = $1 AND state = 'skipped'
  AND NOT (id <= $2 AND pg_visible_in_snapshot(xid, $3::text::pg_snapshot))`

// park makes dead letters of events before the position passes them.
func (t *term) park(ctx context.Context, ids []int64) error {
	return t.exec(ctx, readTimeout, "park events", parkEvents, t.relay, t.token, t.holder, ids)
}

// refuse parks an event, and notes why, and which later ones of its aggregate are on the topic
// already. Crash point: without the note it is sent again, and refused again.
func (t *term) refuse(ctx context.Context, id int64, why error, wentAhead []uuid.UUID) error {
	if err := t.park(ctx, []int64{id}); err != nil {
		return err
	}
	return t.exec(ctx, readTimeout, "note a refusal", markRefused,
		t.relay, t.token, t.holder, id, why.Error(), wentAhead)
}

// sent notes that the broker now has these dead letters.
func (t *term) sent(ctx context.Context, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	return t.exec(ctx, readTimeout, "mark dead letters", markSent, t.relay, t.token, t.holder, ids)
}

// hold finds out what is not sent in this term.
func (l *leader) hold(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	l.parked, l.skipped = map[aggregate]int64{}, map[int64]bool{}

	// Both come from one statement, so no decision of an operator falls in between.
	var of aggregate
	var id int64
	var skipped bool
	rows, _ := l.DB.Query(ctx, heldEvents, l.Name, l.term.at.Last, l.term.at.Seen)
	_, err := pgx.ForEachRow(rows, []any{&of.kind, &of.id, &id, &skipped}, func() error {
		if skipped {
			l.skipped[id] = true
		} else {
			l.parked[of] = id
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for parked and skipped events: %w", err)
	}

	return nil
}

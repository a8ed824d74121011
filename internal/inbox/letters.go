package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// An event that cannot be processed becomes a dead letter, and its aggregate is parked: what comes
// behind it becomes a letter too, which keeps the aggregate's order. All other aggregates flow. An
// operator decides on each event that could not be processed: retry or skip. Once all of an
// aggregate are decided, any instance processes its letters in order.

// errFlood means that too many events already wait for a decision. It is not an outage of the
// database, but the partition waits as in one.
var errFlood = errors.New("too many dead letters wait for a decision")

// Finds the events that are letters, and those whose aggregate is parked. The LIMITs make it two
// index look-ups per event; mostly the table is empty.
const findStanding = `
SELECT t.i, l.event_id IS NOT NULL, p.key IS NOT NULL
FROM unnest($3::uuid[], $4::bytea[]) WITH ORDINALITY t(event_id, key, i)
LEFT JOIN LATERAL (SELECT event_id FROM inbox_dead_letters WHERE consumer = $1 AND event_id = t.event_id LIMIT 1) l ON true
LEFT JOIN LATERAL (SELECT key FROM inbox_dead_letters WHERE consumer = $1 AND topic = $2 AND key = t.key AND t.key <> ''
                   AND state IN ('parked', 'retry') LIMIT 1) p ON true
WHERE l.event_id IS NOT NULL OR p.key IS NOT NULL`

// standings returns what is known of some of these messages, all of one topic, by their index:
// Duplicate, it is a letter, decided or not; Parked, its aggregate is.
func (c *Consumer) standings(
	ctx context.Context, tx pgx.Tx, ms []message,
) (known map[int]string, err error) {
	ids, keys := make([]uuid.UUID, len(ms)), make([][]byte, len(ms))
	for i, m := range ms {
		ids[i], keys[i] = m.letterID(), aggregate(m.event.Key)
	}

	// ForEachRow has the query's error, too.
	rows, _ := tx.Query(ctx, findStanding, c.Name, ms[0].event.Topic, arrays(ids), keys)
	var i int
	var isLetter, isParked bool
	known = map[int]string{}
	_, err = pgx.ForEachRow(rows, []any{&i, &isLetter, &isParked}, func() error {
		known[i-1] = Parked
		if isLetter {
			known[i-1] = Duplicate
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for dead letters: %w", err)
	}
	return known, nil
}

// maxKey is how long a key may be for the tables' indexes: they take 2,704 bytes with the topic and
// the consumer's name.
const maxKey = 1024

// aggregate returns what identifies the aggregate of a key: the key, or the hash of a long one.
func aggregate(key []byte) []byte {
	if len(key) > maxKey {
		hash := sha256.Sum256(key)
		return hash[:]
	}
	return filled(key)
}

// An event that has taken effect is not stored. $3 is its own day, by which that is known even if
// the letter has none: another instance may have made the day at midnight.
const insertLetter = `
INSERT INTO inbox_dead_letters (consumer, event_id, event_day, event_type, sequence, topic, partition, "offset", key, long_key, headers, payload, reason, tries)
SELECT $1, $2, CASE WHEN NOT $4 THEN $3::date END, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15
WHERE NOT EXISTS (SELECT FROM inbox_events WHERE consumer = $1 AND event_id = $2 AND event_day = $3)
ON CONFLICT (consumer, event_id) DO NOTHING`

// store makes letters of messages, in order. Without a reason they wait behind another one.
// Dayless: the inbox does not cover their day, so the letter's own state is the only record.
func (c *Consumer) store(
	ctx context.Context, tx pgx.Tx, ms []message, reason string, tries int, dayless bool,
) error {
	var why *string
	if reason != "" {
		why = &reason
	}

	var batch pgx.Batch
	for _, m := range ms {
		e, key := m.event, aggregate(m.event.Key)
		var day *time.Time
		if m.err == nil && !e.Time.IsZero() {
			day = &days([]time.Time{e.Time})[0]
		}
		var longKey []byte
		if len(e.Key) > maxKey {
			longKey = e.Key
		}
		batch.Queue(insertLetter, c.Name, [16]byte(m.letterID()), day, dayless, clean(e.Type),
			e.Sequence, e.Topic, e.Partition, e.Offset, key, longKey, m.headers(),
			filled(e.Payload), why, tries)
	}

	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store dead letters: %w", err)
	}
	return nil
}

// filled returns b, or an empty slice if b is nil.
func filled(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// clean makes any bytes storable as text: Postgres accepts neither invalid UTF-8 nor NUL, and
// storing a letter must not fail.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

const countUndecided = `
SELECT count(*) FROM inbox_dead_letters WHERE consumer = $1 AND state = 'parked' AND reason IS NOT NULL`

// park stores one message that cannot be processed, or returns errFlood. When it returns nil, the
// offset may be committed.
func (c *Consumer) park(
	ctx context.Context, m message, reason string, tries int, dayless bool,
) error {
	return c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		known, err := c.standings(ctx, tx, []message{m})
		if err != nil || known[0] == Duplicate {
			return err
		}

		var undecided int
		if err := tx.QueryRow(ctx, countUndecided, c.Name).Scan(&undecided); err != nil {
			return fmt.Errorf("count dead letters: %w", err)
		}
		if undecided >= c.MaxDeadLetters {
			return fmt.Errorf("%w: %d", errFlood, undecided)
		}
		return c.store(ctx, tx, []message{m}, reason, tries, dayless)
	})
}

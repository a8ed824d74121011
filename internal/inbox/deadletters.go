package inbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DeadLetter is an event that a consumer cannot process, as an operator sees it.
type DeadLetter struct {
	ID        int64     `json:"id"`
	EventID   uuid.UUID `json:"event_id"`
	Type      string    `json:"event_type"`
	Sequence  int64     `json:"sequence"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Key       string    `json:"key"`
	Headers   []string  `json:"headers"` // name, value, name, value …
	Bytes     int       `json:"payload_bytes"`
	Payload   []byte    `json:"-"` // by FindDeadLetter only
	Reason    string    `json:"reason"`
	Tries     int       `json:"tries"`
	State     string    `json:"state"` // parked, retry, applied or skipped
	ParkedAt  time.Time `json:"parked_at"`
	Note      string    `json:"note"`    // why it was skipped
	Waiting   int64     `json:"waiting"` // in its aggregate, itself included; at most 10,000
}

// ErrNoDeadLetter means that there is no dead letter with this id or, for a decision, none that
// waits for one.
var ErrNoDeadLetter = errors.New("no dead letter with this id waits for a decision")

// The dead letters from one id to another, with a payload if it is one only.
const failedLetters = `
SELECT id, event_id, event_type, sequence, topic, partition, "offset", key, headers, octet_length(payload), reason, tries, state, parked_at, note,
       CASE WHEN key = '' THEN (state IN ('parked', 'retry'))::int ELSE
         (SELECT count(*) FROM (SELECT FROM inbox_dead_letters w WHERE w.consumer = d.consumer AND w.topic = d.topic AND w.key = d.key
                                AND w.state IN ('parked', 'retry') ORDER BY w.id LIMIT 10000) w) END,
       CASE WHEN $3::bigint = $4 THEN payload END
FROM inbox_dead_letters d WHERE consumer = $1 AND reason IS NOT NULL AND ($2 OR state IN ('parked', 'retry')) AND id BETWEEN $3 AND $4
ORDER BY id LIMIT 1000`

// DeadLetters returns the first 1,000 dead letters of a consumer, with decided ones if all is set.
func DeadLetters(
	ctx context.Context, db *pgxpool.Pool, consumer string, all bool,
) ([]DeadLetter, error) {
	return readLetters(ctx, db, consumer, all, 0, math.MaxInt64)
}

// FindDeadLetter returns one dead letter of a consumer with its payload, decided or not, or
// ErrNoDeadLetter.
func FindDeadLetter(
	ctx context.Context, db *pgxpool.Pool, consumer string, id int64,
) (DeadLetter, error) {
	found, err := readLetters(ctx, db, consumer, true, id, id)
	if err == nil && len(found) == 0 {
		err = ErrNoDeadLetter
	}
	if err != nil {
		return DeadLetter{}, err
	}
	return found[0], nil
}

func readLetters(
	ctx context.Context, db *pgxpool.Pool, consumer string, all bool, from, to int64,
) (found []DeadLetter, err error) {
	rows, _ := db.Query(ctx, failedLetters, consumer, all, from, to) // CollectRows has the error
	found, err = pgx.CollectRows(rows, readLetter)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	return found, nil
}

func readLetter(row pgx.CollectableRow) (d DeadLetter, err error) {
	var key []byte
	var headers [][]byte
	err = row.Scan(&d.ID, &d.EventID, &d.Type, &d.Sequence, &d.Topic, &d.Partition, &d.Offset,
		&key, &headers, &d.Bytes,
		&d.Reason, &d.Tries, &d.State, &d.ParkedAt, &d.Note, &d.Waiting, &d.Payload)

	d.Key = string(key)
	for _, part := range headers {
		d.Headers = append(d.Headers, string(part))
	}
	return d, err
}

const retryLetter = `
UPDATE inbox_dead_letters SET state = 'retry' WHERE consumer = $1 AND id = $2 AND state = 'parked' AND reason IS NOT NULL`

// RetryDeadLetter releases a dead letter: it is processed, and then what waits behind it. A
// running consumer notices within a second. Retrying one that the inbox does not cover
// (ErrForgotten) asserts that it has not taken effect before.
func RetryDeadLetter(ctx context.Context, db *pgxpool.Pool, consumer string, id int64) error {
	return decide(ctx, db, retryLetter, consumer, id)
}

// The letter's number counts as reached, so that the next one is no gap.
const skipLetter = `
WITH skipped AS (
  UPDATE inbox_dead_letters SET state = 'skipped', note = $3, resolved_at = clock_timestamp()
  WHERE consumer = $1 AND id = $2 AND state = 'parked' AND reason IS NOT NULL
  RETURNING consumer, topic, key, sequence
), reached AS (
  INSERT INTO inbox_sequences AS s (consumer, topic, key, last, day)
  SELECT consumer, topic, key, sequence, (now() AT TIME ZONE 'utc')::date FROM skipped WHERE sequence > 0 AND key <> ''
  ON CONFLICT (consumer, topic, key) DO UPDATE SET last = greatest(s.last, excluded.last)
)
SELECT FROM skipped`

// SkipDeadLetter gives a dead letter up for good; what waits behind it is processed. The reason
// must not be empty and is stored as the letter's note.
func SkipDeadLetter(
	ctx context.Context, db *pgxpool.Pool, consumer string, id int64, reason string,
) error {
	return decide(ctx, db, skipLetter, consumer, id, reason)
}

// decide runs the statement of a decision and returns ErrNoDeadLetter if it changes nothing.
func decide(ctx context.Context, db *pgxpool.Pool, sql, consumer string, args ...any) error {
	tag, err := db.Exec(ctx, sql, append([]any{consumer}, args...)...)
	switch {
	case err != nil:
		return fmt.Errorf("decide on a dead letter: %w", err)
	case tag.RowsAffected() == 0:
		return ErrNoDeadLetter
	}

	return nil
}

package inbox

import (
	"context"
	"errors"
	"fmt"
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

const failedLetters = `
       id, event_id, event_type, sequence, topic, partition, "offset", key, headers, octet_length(payload), reason, tries, state, parked_at, note,
       CASE WHEN key = '' THEN (state IN ('parked', 'retry'))::int ELSE
         (SELECT count(*) FROM (SELECT FROM inbox_dead_letters w WHERE w.consumer = d.consumer AND w.topic = d.topic AND w.key = d.key
                                AND w.state IN ('parked', 'retry') ORDER BY w.id LIMIT 10000) w) END
FROM inbox_dead_letters d WHERE consumer = $1 AND reason IS NOT NULL`

const listLetters = `SELECT ` + failedLetters + ` AND ($2 OR state IN ('parked', 'retry')) ORDER BY id LIMIT 1000`

// DeadLetters returns the first 1,000 dead letters of a consumer, with decided ones if all is set.
func DeadLetters(
	ctx context.Context, db *pgxpool.Pool, consumer string, all bool,
) ([]DeadLetter, error) {
	rows, err := db.Query(ctx, listLetters, consumer, all)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}

	letters, err := pgx.CollectRows(rows, readLetter)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}

	return letters, nil
}

const findLetter = `SELECT ` + failedLetters + ` AND id = $2`

// FindDeadLetter returns one dead letter of a consumer, decided or not, or ErrNoDeadLetter.
func FindDeadLetter(
	ctx context.Context, db *pgxpool.Pool, consumer string, id int64,
) (DeadLetter, error) {
	rows, err := db.Query(ctx, findLetter, consumer, id)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("find a dead letter: %w", err)
	}

	letter, err := pgx.CollectExactlyOneRow(rows, readLetter)
	if errors.Is(err, pgx.ErrNoRows) {
		return DeadLetter{}, ErrNoDeadLetter
	}
	if err != nil {
		return DeadLetter{}, fmt.Errorf("find a dead letter: %w", err)
	}

	return letter, nil
}

func readLetter(row pgx.CollectableRow) (d DeadLetter, err error) {
	var key []byte
	var headers [][]byte
	err = row.Scan(&d.ID, &d.EventID, &d.Type, &d.Sequence, &d.Topic, &d.Partition, &d.Offset,
		&key, &headers, &d.Bytes,
		&d.Reason, &d.Tries, &d.State, &d.ParkedAt, &d.Note, &d.Waiting)

	d.Key = string(key)
	for _, part := range headers {
		d.Headers = append(d.Headers, string(part))
	}

	return d, err
}

const letterPayload = `
SELECT payload FROM inbox_dead_letters WHERE consumer = $1 AND id = $2 AND reason IS NOT NULL`

// DeadLetterPayload returns the payload of a dead letter, or ErrNoDeadLetter.
func DeadLetterPayload(
	ctx context.Context, db *pgxpool.Pool, consumer string, id int64,
) (payload []byte, err error) {
	err = db.QueryRow(ctx, letterPayload, consumer, id).Scan(&payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNoDeadLetter
	}
	if err != nil {
		return nil, fmt.Errorf("read a dead letter: %w", err)
	}

	return payload, nil
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

package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DeadLetter is an event that the broker refused, as an operator sees it.
type DeadLetter struct {
	ID            int64       `json:"id"`
	EventID       uuid.UUID   `json:"event_id"`
	AggregateType string      `json:"aggregate_type"`
	AggregateID   string      `json:"aggregate_id"`
	Type          string      `json:"event_type"`
	Bytes         int         `json:"payload_bytes"`
	Refusal       string      `json:"refusal"`
	WentAhead     []uuid.UUID `json:"went_ahead"` // later events of its aggregate, already sent
	State         string      `json:"state"`      // parked, retry, sent or skipped
	ParkedAt      time.Time   `json:"parked_at"`
	Note          string      `json:"note"`    // why it was skipped
	Waiting       int64       `json:"waiting"` // events of its aggregate that wait, itself included
	Payload       []byte      `json:"-"`       // of FindDeadLetter only
}

// ErrNoDeadLetter says that no refused event has this id or, for a decision, that it does not wait
// for one.
var ErrNoDeadLetter = errors.New("no refused event with this id waits for a decision")

const letterColumns = `
       id, event_id, aggregate_type, aggregate_id, event_type, octet_length(payload),
       refusal, went_ahead, state, parked_at, note,
       (SELECT count(*) FROM outbox_dead_letters w
        WHERE w.relay = d.relay AND w.aggregate_type = d.aggregate_type
          AND w.aggregate_id = d.aggregate_id AND w.state IN ('parked', 'retry'))`

const listLetters = `SELECT ` + letterColumns + `, NULL::bytea
FROM outbox_dead_letters d WHERE relay = $1 AND refusal IS NOT NULL
  AND ($2 OR state IN ('parked', 'retry')) ORDER BY id LIMIT 1000`

const findLetter = `SELECT ` + letterColumns + `, payload
FROM outbox_dead_letters d WHERE relay = $1 AND refusal IS NOT NULL AND id = $2`

// DeadLetters returns the first 1,000 refused events of a relay, with those of the past if all is
// set.
func DeadLetters(ctx context.Context, db *pgxpool.Pool, relay string, all bool) ([]DeadLetter, error) {
	rows, _ := db.Query(ctx, listLetters, relay, all) // CollectRows returns its error
	letters, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DeadLetter])
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

// FindDeadLetter returns one refused event of a relay, in any state, or ErrNoDeadLetter.
func FindDeadLetter(ctx context.Context, db *pgxpool.Pool, relay string, id int64) (DeadLetter, error) {
	rows, _ := db.Query(ctx, findLetter, relay, id) // CollectExactlyOneRow returns its error
	letter, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[DeadLetter])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return DeadLetter{}, ErrNoDeadLetter
	case err != nil:
		return DeadLetter{}, fmt.Errorf("find a dead letter: %w", err)
	}

	return letter, nil
}

const retryLetter = `
UPDATE outbox_dead_letters SET state = 'retry'
WHERE relay = $1 AND id = $2 AND state = 'parked' AND refusal IS NOT NULL`

// RetryDeadLetter releases a refused event: it is sent again, then what waits behind it. The leader
// notices within a second.
func RetryDeadLetter(ctx context.Context, db *pgxpool.Pool, relay string, id int64) error {
	return decide(ctx, db, retryLetter, relay, id)
}

const skipLetter = `
UPDATE outbox_dead_letters SET state = 'skipped', note = $3, resolved_at = clock_timestamp()
WHERE relay = $1 AND id = $2 AND state = 'parked' AND refusal IS NOT NULL`

// SkipDeadLetter gives a refused event up; what waits behind it is sent. Consumers that watch
// versions see a gap, so the reason is kept and must not be empty.
func SkipDeadLetter(ctx context.Context, db *pgxpool.Pool, relay string, id int64, reason string) error {
	return decide(ctx, db, skipLetter, relay, id, reason)
}

func decide(ctx context.Context, db *pgxpool.Pool, sql string, args ...any) error {
	tag, err := db.Exec(ctx, sql, args...)
	switch {
	case err != nil:
		return fmt.Errorf("decide on a dead letter: %w", err)
	case tag.RowsAffected() == 0:
		return ErrNoDeadLetter
	}

	return nil
}

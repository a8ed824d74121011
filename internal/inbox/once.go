package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNoDay means that the inbox has no partition for the day of an event: roll back, call
	// MakeDays, and begin again.
	ErrNoDay = errors.New("the inbox has no partition for the day of an event")

	// ErrForgotten means that the inbox cannot know whether an event has taken effect: its day is
	// before the horizon, or more than a day ahead of the database's clock. Neither process it nor
	// pass it over: ask a person.
	ErrForgotten = errors.New("the inbox does not cover the day of an event")
)

// Once notes in the caller's transaction that consumer has received the event, and reports whether
// it is the first time. at is the event's own time (ce_time), the same on every delivery. If
// first, the caller must write the effect in this transaction; if not, it has happened and there
// is nothing to do.
//
// Call Once before writing the effect, never after: of two transactions that handle one event at
// the same time, the second waits here until the first has committed (then it is not first) or
// rolled back (then it is).
func Once(
	ctx context.Context, tx pgx.Tx, consumer string, event uuid.UUID, at time.Time,
) (first bool, err error) {
	firsts, err := OnceEach(ctx, tx, consumer, []uuid.UUID{event}, []time.Time{at})
	if err != nil {
		return false, err
	}

	return firsts[0], nil
}

// Sorted, so that two transactions that share some events do not deadlock. An id that is twice in
// the array is inserted once.
const insertEach = `
INSERT INTO inbox_events (consumer, event_id, event_day)
SELECT $1, t.event_id, t.event_day FROM unnest($2::uuid[], $3::date[]) t(event_id, event_day) ORDER BY t.event_id
ON CONFLICT (consumer, event_id, event_day) DO NOTHING
RETURNING event_id`

// OnceEach is Once for many events, in one statement. If an event is in the slice twice, only its
// first occurrence is first.
func OnceEach(
	ctx context.Context, tx pgx.Tx, consumer string, events []uuid.UUID, at []time.Time,
) (first []bool, err error) {
	// CollectRows has the query's error, too.
	rows, _ := tx.Query(ctx, insertEach, consumer, arrays(events), days(at))
	inserted, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	var pg *pgconn.PgError
	switch {
	// No partition takes the row. The table has no other check.
	case errors.As(err, &pg) && pg.Code == "23514" && pg.ConstraintName == "":
		return nil, fmt.Errorf("note events in inbox: %w", ErrNoDay)
	case err != nil:
		return nil, fmt.Errorf("note events in inbox: %w", err)
	}

	isNew := make(map[uuid.UUID]bool, len(inserted))
	for _, id := range inserted {
		isNew[id] = true
	}

	// Each id counts once, whatever the slice repeats.
	first = make([]bool, len(events))
	for i, id := range events {
		first[i] = isNew[id]
		delete(isNew, id)
	}
	return first, nil
}

// arrays returns ids in the form that pgx sends fastest.
func arrays(ids []uuid.UUID) [][16]byte {
	to := make([][16]byte, len(ids))
	for i, id := range ids {
		to[i] = id
	}
	return to
}

const makeDays = `SELECT inbox_events_make_partitions($1::date[])`

// MakeDays makes the partitions for events of these times, in a transaction of its own. It returns
// ErrForgotten if the inbox does not cover one of them; the others have been made.
func MakeDays(ctx context.Context, db Beginner, at ...time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	var refused []time.Time
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{}, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, makeDays, days(at)).Scan(&refused)
	})

	switch {
	case err != nil:
		return fmt.Errorf("make inbox partitions: %w", err)
	case len(refused) > 0:
		return fmt.Errorf("%w: %s", ErrForgotten, refused[0].Format(time.DateOnly))
	}
	return nil
}

// days returns the UTC day of each time.
func days(at []time.Time) []time.Time {
	utc := make([]time.Time, len(at))
	for i, t := range at {
		utc[i] = t.UTC().Truncate(24 * time.Hour)
	}
	return utc
}

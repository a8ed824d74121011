package inbox

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Once notes in the caller's transaction that consumer has received the event. first: the effect is the caller's to write, in
// this transaction. Not first: it has happened, and there is nothing to do.
//
// The insert comes before the effect, never after it: of two that handle one event at the same time, the second waits
// here until the first has committed (and is not first then) or rolled back (and is).
func Once(ctx context.Context, tx pgx.Tx, consumer string, event uuid.UUID) (first bool, err error) {
	firsts, err := OnceEach(ctx, tx, consumer, []uuid.UUID{event})
	if err != nil {
		return false, err
	}
	return firsts[0], nil
}

// Sorted, so that two that share some of their events do not deadlock. An id that is twice in the array is inserted once.
const insertEach = `
INSERT INTO inbox_events (consumer, event_id)
SELECT $1, t.event_id FROM unnest($2::uuid[]) t(event_id) ORDER BY t.event_id
ON CONFLICT (consumer, event_id) DO NOTHING
RETURNING event_id`

// OnceEach is Once for many events, in one statement. Of an event that is in the slice twice only the first is first.
func OnceEach(ctx context.Context, tx pgx.Tx, consumer string, events []uuid.UUID) (first []bool, err error) {
	rows, err := tx.Query(ctx, insertEach, consumer, events)
	if err != nil {
		return nil, fmt.Errorf("note events in inbox: %w", err)
	}
	inserted, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("note events in inbox: %w", err)
	}
	isNew := make(map[uuid.UUID]bool, len(inserted))
	for _, id := range inserted {
		isNew[id] = true
	}
	first = make([]bool, len(events))
	for i, id := range events {
		first[i] = isNew[id]
		delete(isNew, id)
	}
	return first, nil
}

package inbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	releaseBatch = 100              // letters of one aggregate in one transaction
	releaseEvery = time.Second      // how soon a decision is noticed
	releaseMost  = 10 * time.Second // the same while searching is slow
)

// letter is a stored message that may be processed now.
type letter struct {
	message
	id       int64
	asserted bool // an operator says that it has not taken effect: the inbox cannot know
}

// releaser processes the letters that operators release.
type releaser struct {
	*Consumer
	slow  map[int64]timeouts // by letter
	alone int                // how many to process one by one, because one of them fails
}

// timeouts counts how often a released letter timed out in a row.
type timeouts struct {
	n     int
	again time.Time // when it is tried again
}

// run processes letters until ctx ends.
func (r *releaser) run(ctx context.Context) {
	for ctx.Err() == nil {
		start := time.Now()
		found, err := r.release(ctx)

		// The session logs outages.
		if err != nil && ctx.Err() == nil && !errors.Is(err, errOutage) {
			r.Log.WarnContext(ctx, "dead letters not processed, trying again", "error", err)
		}
		if found {
			continue
		}

		r.measureLetters(ctx)
		maps.DeleteFunc(r.slow, func(_ int64, t timeouts) bool {
			return time.Since(t.again) > time.Minute // another instance has processed it
		})

		// Many may wait behind a few letters. Searching them must not become a load: this keeps it
		// under 5 % of the time. A search that waited for a lock says nothing about the load.
		sleep(ctx, min(max(releaseEvery, 20*time.Since(start)), releaseMost))
	}
}

// One instance at a time processes letters: those of an aggregate must not overtake each other.
// The lock has a statement of its own, so that the next statement sees all that the previous
// holder committed.
const lockLetters = `
SELECT pg_try_advisory_xact_lock(hashtextextended('inbox_dead_letters ' || $1, 0))`

// Walks the index from one open aggregate to the next: millions may wait behind one undecided
// letter, and reading each of them would take longer than the statement timeout.
const openAggregates = `aggregates AS (
  (SELECT topic, key FROM inbox_dead_letters WHERE consumer = $1 AND state IN ('parked', 'retry') ORDER BY topic, key LIMIT 1)
  UNION ALL
  SELECT n.topic, n.key FROM aggregates a CROSS JOIN LATERAL (
    SELECT topic, key FROM inbox_dead_letters WHERE consumer = $1 AND state IN ('parked', 'retry') AND (topic, key) > (a.topic, a.key)
    ORDER BY topic, key LIMIT 1) n
)`

// The first letters of one aggregate that may be processed. Without a key each letter is an
// aggregate of its own, and none waits behind another. $2 are the letters that timed out and whose
// pause is not over.
const readReleased = `
WITH RECURSIVE ` + openAggregates + `, released AS (
  SELECT min(f.id) AS id FROM aggregates a CROSS JOIN LATERAL (
    SELECT id FROM inbox_dead_letters WHERE consumer = $1 AND topic = a.topic AND key = a.key AND state IN ('parked', 'retry')
    AND (a.key <> '' OR state = 'retry' AND id <> ALL($2)) ORDER BY id LIMIT 1) f
  WHERE f.id <> ALL($2)
  AND (a.key = '' OR NOT EXISTS (SELECT FROM inbox_dead_letters u WHERE u.consumer = $1 AND u.topic = a.topic AND u.key = a.key
                                 AND u.state = 'parked' AND u.reason IS NOT NULL))
), first AS (
  SELECT topic, key, id FROM inbox_dead_letters WHERE consumer = $1 AND id = (SELECT id FROM released)
)
SELECT id, event_id, event_day IS NULL, topic, partition, "offset", coalesce(long_key, key), headers, payload FROM inbox_dead_letters
WHERE consumer = $1 AND topic = (SELECT topic FROM first) AND key = (SELECT key FROM first) AND id >= (SELECT id FROM first)
  AND state IN ('parked', 'retry') AND (key <> '' OR id = (SELECT id FROM first))
ORDER BY id LIMIT $3`

const markApplied = `
UPDATE inbox_dead_letters SET state = 'applied', resolved_at = clock_timestamp()
WHERE consumer = $1 AND id = ANY($2) AND state IN ('parked', 'retry')`

const markFailed = `
UPDATE inbox_dead_letters SET state = 'parked', reason = $3, tries = tries + 1,
  event_day = CASE WHEN $4 THEN NULL ELSE event_day END
WHERE consumer = $1 AND id = $2 AND state IN ('parked', 'retry')`

// release processes the first letters of one aggregate that are due, if there are any. If one of
// them fails, they are processed one by one. That one is a dead letter again at once: a person has
// just looked at it, and the others must not wait. One that times out stays released, and gets as
// many tries as an event that times out.
func (r *releaser) release(ctx context.Context) (found bool, err error) {
	start := time.Now()
	var letters []letter
	var outcomes []string
	var gaps []gap
	err = r.transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		var mine bool
		letters = nil
		if err := tx.QueryRow(ctx, lockLetters, r.Name).Scan(&mine); err != nil || !mine {
			return err
		}
		if letters, err = r.due(ctx, tx); err != nil || len(letters) == 0 {
			return err
		}
		outcomes, gaps, err = r.apply(ctx, tx, letters)
		return err
	})

	switch {
	case len(letters) == 0, errors.Is(err, errOutage):
		return false, err
	case err == nil:
		for _, l := range letters {
			delete(r.slow, l.id)
		}
		r.alone = max(0, r.alone-len(letters))
		r.tell(ctx, outcomes, time.Since(start), gaps)
		r.Log.InfoContext(ctx, "dead letters processed",
			"letters", len(letters), "first_id", letters[0].id, "topic", letters[0].event.Topic)
		return true, nil
	case ctx.Err() != nil:
		return false, err
	case len(letters) > 1:
		r.alone = len(letters)
		return true, nil
	}
	return r.failed(ctx, letters[0], time.Since(start), err)
}

// due returns the letters that may be processed in one transaction.
func (r *releaser) due(ctx context.Context, tx pgx.Tx) ([]letter, error) {
	later := []int64{}
	for id, t := range r.slow {
		if time.Now().Before(t.again) {
			later = append(later, id)
		}
	}
	size := releaseBatch
	if r.alone > 0 || len(r.slow) > 0 {
		size = 1
	}

	rows, _ := tx.Query(ctx, readReleased, r.Name, later, size) // CollectRows has the error
	letters, err := pgx.CollectRows(rows, readReleasedLetter)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}

	// One that is no event, or that the inbox cannot know, comes alone.
	for i, l := range letters {
		if l.err != nil || l.asserted {
			return letters[:max(1, i)], nil
		}
	}
	return letters, nil
}

func readReleasedLetter(row pgx.CollectableRow) (l letter, err error) {
	var known uuid.UUID
	var dayless bool
	var e Event
	var headers [][]byte
	err = row.Scan(&l.id, &known, &dayless,
		&e.Topic, &e.Partition, &e.Offset, &e.Key, &headers, &e.Payload)
	l.message = reread(e.Topic, e.Partition, e.Offset, e.Key, headers, e.Payload)

	// A record that this program can read and its predecessor could not has a day.
	l.asserted = dayless && l.event.ID == known
	return l, err
}

// apply processes letters of one aggregate, unless the inbox shows that they have taken effect.
func (c *Consumer) apply(
	ctx context.Context, tx pgx.Tx, letters []letter,
) (outcomes []string, gaps []gap, err error) {
	if err := letters[0].err; err != nil {
		return nil, nil, fmt.Errorf("read event: %w", err)
	}

	var events []Event
	var ids []int64
	for _, l := range letters {
		events, ids = append(events, l.event), append(ids, l.id)
	}
	outcomes, gaps, err = c.effect(ctx, tx, events, letters[0].asserted)
	if err != nil {
		return nil, nil, err
	}

	// Crash point: everything is written, nothing is committed. The letters wait as before.
	tag, err := tx.Exec(ctx, markApplied, c.Name, ids)
	if err == nil && tag.RowsAffected() != int64(len(ids)) {
		err = ErrNoDeadLetter // one has been decided or applied meanwhile
	}
	if err != nil {
		return nil, nil, fmt.Errorf("note dead letters as applied: %w", err)
	}
	return outcomes, gaps, nil
}

// failed decides what to do with a letter that failed. Found: the next one may be tried at once.
func (r *releaser) failed(
	ctx context.Context, l letter, took time.Duration, reason error,
) (found bool, err error) {
	log := r.Log.With("id", l.id, "event_id", l.letterID())
	r.alone = 0 // this is the one: those behind it wait
	switch n := r.slow[l.id].n + 1; {
	case errors.Is(reason, ErrNoDay):
		if reason = MakeDays(ctx, r.DB, l.event.Time); !errors.Is(reason, ErrForgotten) {
			return reason == nil, reason
		}
	case timedOut(reason) && n < 2*r.Tries:
		wait := r.pause(n)
		r.slow[l.id] = timeouts{n, time.Now().Add(wait)}
		log.WarnContext(ctx, "dead letter timed out, trying again", "retry_in", wait, "error", reason)
		return true, nil
	}

	// Back to the operator.
	delete(r.slow, l.id)
	r.OnEvent(Failed, took)
	log.ErrorContext(ctx, "dead letter failed again", "error", reason)
	err = r.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, markFailed,
			r.Name, l.id, clean(reason.Error()), errors.Is(reason, ErrForgotten))
		return err
	})
	return err == nil, err
}

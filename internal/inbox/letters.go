package inbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// An event that cannot be processed becomes a dead letter, and its aggregate is parked: what comes
// behind it becomes a letter too, which keeps the aggregate's order. All other aggregates flow. An
// operator decides on each event that could not be processed: retry or skip. Once all of an
// aggregate are decided, any instance processes its letters in order.

// letter is a stored message: it cannot be processed, or waits behind one that cannot.
type letter struct {
	id      int64     // in the table
	eventID uuid.UUID // its key in the table
	event   Event
	err     error    // why it is no event
	headers [][]byte // name, value, name, value …
	reason  string   // why it cannot be processed; empty: it waits behind another one
	tries   int
	dayless bool // the inbox does not cover its day: the letter's own state is the only record
}

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

// standing is the state of a message before it is processed.
type standing int

const (
	free    standing = iota
	stored           // it is a letter, decided or not
	waiting          // its aggregate is parked
)

// standings returns the standing of each of these messages, all of one topic.
func (c *Consumer) standings(
	ctx context.Context, tx pgx.Tx, topic string, ids []uuid.UUID, keys [][]byte,
) ([]standing, error) {
	arrays := make([][16]byte, len(ids))
	for i, id := range ids {
		arrays[i] = id
	}

	rows, err := tx.Query(ctx, findStanding, c.Name, topic, arrays, keys)
	if err != nil {
		return nil, fmt.Errorf("look for dead letters: %w", err)
	}

	found := make([]standing, len(ids))
	var i int
	var isLetter, isParked bool
	_, err = pgx.ForEachRow(rows, []any{&i, &isLetter, &isParked}, func() error {
		found[i-1] = waiting
		if isLetter {
			found[i-1] = stored
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for dead letters: %w", err)
	}

	return found, nil
}

// Inserts in the order of the arrays, which becomes the order of the ids. An event that has taken
// effect is not stored; own_day finds it even if the letter has no day, since another instance may
// have made that day at midnight. Headers are slices of one array: their number differs.
const insertLetters = `
INSERT INTO inbox_dead_letters (consumer, event_id, event_day, event_type, sequence, topic, partition, "offset", key, headers, payload, reason, tries)
SELECT $1, t.event_id, t.event_day, t.event_type, t.sequence, $2, $3, t.at, t.key, ($4::bytea[])[t.low:t.high], t.payload, $5, $6
FROM unnest($7::uuid[], $8::date[], $9::text[], $10::bigint[], $11::bigint[], $12::bytea[], $13::bytea[], $14::int[], $15::int[], $16::date[])
     WITH ORDINALITY t(event_id, event_day, event_type, sequence, at, key, payload, low, high, own_day, i)
LEFT JOIN LATERAL (SELECT event_id FROM inbox_events WHERE consumer = $1 AND event_id = t.event_id AND event_day = t.own_day LIMIT 1) e ON true
WHERE e.event_id IS NULL
ORDER BY t.i
ON CONFLICT (consumer, event_id) DO NOTHING`

// store writes letters of one partition, in order, all with the same reason.
func (c *Consumer) store(ctx context.Context, tx pgx.Tx, letters []letter) error {
	n := len(letters)
	ids, types, sequences, offsets := make([][16]byte, n), make([]string, n),
		make([]int64, n), make([]int64, n)
	kept, own := make([]*time.Time, n), make([]*time.Time, n)
	keys, payloads, lows, highs := make([][]byte, n), make([][]byte, n),
		make([]int32, n), make([]int32, n)
	headers := [][]byte{}

	for i, l := range letters {
		ids[i], types[i], sequences[i], offsets[i] = l.eventID, clean(l.event.Type),
			l.event.Sequence, l.event.Offset
		keys[i], payloads[i] = filled(l.event.Key), filled(l.event.Payload)

		lows[i] = int32(len(headers) + 1)
		for _, part := range l.headers {
			headers = append(headers, filled(part))
		}
		highs[i] = int32(len(headers))

		// A day that the inbox does not cover is looked up but not stored.
		if l.err == nil && !l.event.Time.IsZero() {
			own[i] = &days([]time.Time{l.event.Time})[0]
			if !l.dayless {
				kept[i] = own[i]
			}
		}
	}

	first := letters[0]
	var reason *string
	if first.reason != "" {
		reason = &first.reason
	}

	_, err := tx.Exec(ctx, insertLetters,
		c.Name, first.event.Topic, first.event.Partition, headers, reason, first.tries,
		ids, kept, types, sequences, offsets, keys, payloads, lows, highs, own)
	if err != nil {
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
func (c *Consumer) park(ctx context.Context, l letter) error {
	l.reason = clean(l.reason)

	return c.race(ctx, func(ctx context.Context, tx pgx.Tx) error {
		found, err := c.standings(ctx, tx, l.event.Topic,
			[]uuid.UUID{l.eventID}, [][]byte{filled(l.event.Key)})
		if err != nil || found[0] == stored {
			return err
		}

		var undecided int
		if err := tx.QueryRow(ctx, countUndecided, c.Name).Scan(&undecided); err != nil {
			return fmt.Errorf("count dead letters: %w", err)
		}
		if undecided >= c.MaxDeadLetters {
			return fmt.Errorf("%w: %d", errFlood, undecided)
		}

		return c.store(ctx, tx, []letter{l})
	})
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

// Without a key each letter is an aggregate of its own, and none waits behind another. $2 are the
// letters that timed out and whose pause is not over.
const readReleased = `
WITH RECURSIVE ` + openAggregates + `, released AS (
  SELECT min(f.id) AS id FROM aggregates a CROSS JOIN LATERAL (
    SELECT id FROM inbox_dead_letters WHERE consumer = $1 AND topic = a.topic AND key = a.key AND state IN ('parked', 'retry')
    AND (a.key <> '' OR state = 'retry' AND id <> ALL($2)) ORDER BY id LIMIT 1) f
  WHERE f.id <> ALL($2)
  AND (a.key = '' OR NOT EXISTS (SELECT FROM inbox_dead_letters u WHERE u.consumer = $1 AND u.topic = a.topic AND u.key = a.key
                                 AND u.state = 'parked' AND u.reason IS NOT NULL))
)
SELECT id, event_id, event_day IS NULL, topic, partition, "offset", key, headers, payload, tries FROM inbox_dead_letters
WHERE consumer = $1 AND id = (SELECT id FROM released)`

const markApplied = `
UPDATE inbox_dead_letters SET state = 'applied', resolved_at = clock_timestamp()
WHERE consumer = $1 AND id = $2 AND state IN ('parked', 'retry')`

const markFailed = `
UPDATE inbox_dead_letters SET state = 'parked', reason = $3, tries = tries + 1,
  event_day = CASE WHEN $4 THEN NULL ELSE event_day END
WHERE consumer = $1 AND id = $2 AND state IN ('parked', 'retry')`

// timeouts counts how often a released letter timed out in a row.
type timeouts struct {
	n     int
	again time.Time // when it is tried again
}

// release processes the first letter that is due, if there is one. One that fails is a dead letter
// again at once: a person has just looked at it, and the others must not wait. One that times out
// stays released, is noted in slow, and gets as many tries as an event that times out.
func (c *Consumer) release(ctx context.Context, slow map[int64]timeouts) (found bool, err error) {
	start := time.Now()
	later := []int64{}
	for id, t := range slow {
		if start.Before(t.again) {
			later = append(later, id)
		}
	}

	var l letter
	var outcome string
	var gaps []gap
	err = c.race(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		var mine bool
		found = false
		if err := tx.QueryRow(ctx, lockLetters, c.Name).Scan(&mine); err != nil || !mine {
			return err
		}

		if l, found, err = c.firstReleased(ctx, tx, later); err != nil || !found {
			return err
		}

		outcome, gaps, err = c.apply(ctx, tx, l)
		return err
	})

	var away *outageError
	switch {
	case err == nil && found:
		delete(slow, l.id)
		c.OnEvent(outcome, time.Since(start))
		c.tellGaps(ctx, gaps)
		c.Log.InfoContext(ctx, "dead letter processed",
			"id", l.id, "event_id", l.eventID, "outcome", outcome)

		return true, nil
	case err == nil, !found, errors.As(err, &away), ctx.Err() != nil:
		return false, err
	case errors.Is(err, ErrNoDay):
		if err = MakeDays(ctx, c.DB, l.event.Time); err == nil {
			return true, nil // the day is there now: try it at once
		}
		if !errors.Is(err, ErrForgotten) {
			return false, err
		}
	case timedOut(err) && slow[l.id].n+1 < 2*c.Tries:
		n := slow[l.id].n + 1
		wait := c.pause(n)
		slow[l.id] = timeouts{n, time.Now().Add(wait)}
		c.Log.WarnContext(ctx, "dead letter timed out, trying again",
			"id", l.id, "event_id", l.eventID, "retry_in", wait, "error", err)

		return true, nil
	}

	// It failed: back to the operator.
	delete(slow, l.id)
	c.OnEvent(Failed, time.Since(start))
	c.Log.ErrorContext(ctx, "dead letter failed again",
		"id", l.id, "event_id", l.eventID, "error", err)

	forgotten := errors.Is(err, ErrForgotten)
	reason := clean(err.Error())
	err = c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, markFailed, c.Name, l.id, reason, forgotten)
		return err
	})
	return err == nil, err
}

// firstReleased returns the first letter that may be processed, except those in later.
func (c *Consumer) firstReleased(
	ctx context.Context, tx pgx.Tx, later []int64,
) (l letter, found bool, err error) {
	e := &l.event
	err = tx.QueryRow(ctx, readReleased, c.Name, later).Scan(
		&l.id, &l.eventID, &l.dayless, &e.Topic, &e.Partition, &e.Offset,
		&e.Key, &l.headers, &e.Payload, &l.tries)
	if errors.Is(err, pgx.ErrNoRows) {
		return l, false, nil
	}
	if err != nil {
		return l, false, fmt.Errorf("read dead letters: %w", err)
	}

	return reread(l), true, nil
}

// apply processes a letter, unless the inbox shows that it has taken effect.
func (c *Consumer) apply(
	ctx context.Context, tx pgx.Tx, l letter,
) (outcome string, gaps []gap, err error) {
	if l.err != nil {
		return "", nil, fmt.Errorf("read event: %w", l.err)
	}

	// Without a day it was not in the inbox, and the letter's own state makes it take effect once:
	// by retrying it an operator has said that it has not yet. A record that this program can read
	// and its predecessor could not has a day.
	first := true
	if known := l.event.ID == l.eventID; !known || !l.dayless {
		if l.event.Time.IsZero() {
			return "", nil, errNoTime
		}

		if first, err = Once(ctx, tx, c.Name, l.event.ID, l.event.Time); err != nil {
			return "", nil, waited(err, 1)
		}
	} else if !l.event.Time.IsZero() {
		if first, err = c.onceIfCovered(ctx, tx, l.event); err != nil {
			return "", nil, waited(err, 1)
		}
	}

	outcome = Duplicate
	if first {
		outcome = Processed

		if err := c.handle(ctx, tx, []Event{l.event}); err != nil {
			return "", nil, fmt.Errorf("handle: %w", err)
		}

		if gaps, err = c.moveSequences(ctx, tx, []Event{l.event}); err != nil {
			return "", nil, waited(err, 1)
		}
	}

	// Crash point: everything is written, nothing is committed. The letter waits as before.
	tag, err := tx.Exec(ctx, markApplied, c.Name, l.id)
	if err == nil && tag.RowsAffected() != 1 {
		err = ErrNoDeadLetter // it has been decided or applied meanwhile
	}
	if err != nil {
		return "", nil, fmt.Errorf("note a dead letter as applied: %w", err)
	}

	return outcome, gaps, nil
}

// onceIfCovered is Once, or true if the inbox still does not cover the event's day. At midnight one
// instance may process an event of the new day while another makes a letter of it.
func (c *Consumer) onceIfCovered(ctx context.Context, tx pgx.Tx, e Event) (first bool, err error) {
	// A savepoint, because without a partition the insert fails.
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		first, err = Once(ctx, tx, c.Name, e.ID, e.Time)
		return err
	})
	if errors.Is(err, ErrNoDay) {
		return true, nil
	}

	return first, err
}

const releaseEvery = time.Second

// releaseLetters processes the letters that operators release, until ctx ends.
func (c *Consumer) releaseLetters(ctx context.Context) {
	slow := map[int64]timeouts{}
	for ctx.Err() == nil {
		start := time.Now()
		found, err := c.release(ctx, slow)

		var away *outageError
		if err != nil && ctx.Err() == nil && !errors.As(err, &away) { // the session logs outages
			c.Log.WarnContext(ctx, "dead letters not processed, trying again", "error", err)
		}

		if !found {
			c.measureLetters(ctx)
			maps.DeleteFunc(slow, func(_ int64, t timeouts) bool {
				return time.Since(t.again) > time.Hour // another instance has processed it
			})

			// Many may wait behind a few letters. Searching them must not become a load: this
			// keeps it under 5 % of the time.
			sleep(ctx, max(releaseEvery, 20*time.Since(start)))
		}
	}
}

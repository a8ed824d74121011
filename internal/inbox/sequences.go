package inbox

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Kinds of gap in an aggregate's ce_sequence, as passed to OnGap. None stops anything.
const (
	Missing  = "missing"  // numbers were skipped
	Repeated = "repeated" // a new event has a number already reached
	Unknown  = "unknown"  // the first known event of its aggregate is not number 1
)

// gap is an event whose number does not follow the last one of its aggregate.
type gap struct {
	kind  string
	event Event
	last  int64
}

// Sorted, so that two transactions that share some aggregates do not deadlock. "before" sees the
// table as it was when the statement began, with one look-up per key: given key = ANY the planner
// may read the whole topic (0.9 ms per event).
const moveEach = `
WITH given AS (
  SELECT key, max(sequence) AS last, max(day) AS day FROM unnest($3::bytea[], $4::bigint[], $5::date[]) t(key, sequence, day) GROUP BY key
), before AS (
  SELECT g.key, b.last FROM given g
  CROSS JOIN LATERAL (SELECT last FROM inbox_sequences WHERE consumer = $1 AND topic = $2 AND key = g.key LIMIT 1) b
), moved AS (
  INSERT INTO inbox_sequences AS s (consumer, topic, key, last, day)
  SELECT $1, $2, key, last, day FROM given ORDER BY key
  ON CONFLICT (consumer, topic, key) DO UPDATE SET last = greatest(s.last, excluded.last), day = greatest(s.day, excluded.day)
)
SELECT key, last FROM before`

// moveSequences notes the numbers of events, all of one topic and in order, and returns the gaps.
func (c *Consumer) moveSequences(
	ctx context.Context, tx pgx.Tx, events []Event,
) (gaps []gap, err error) {
	var keys [][]byte
	var numbers []int64
	var at []time.Time
	for _, e := range events {
		if e.Sequence > 0 && len(e.Key) > 0 {
			keys, numbers, at = append(keys, aggregate(e.Key)),
				append(numbers, e.Sequence), append(at, e.Time)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}

	// ForEachRow has the query's error, too.
	rows, _ := tx.Query(ctx, moveEach, c.Name, events[0].Topic, keys, numbers, days(at))
	before, key, last := map[string]int64{}, []byte(nil), int64(0)
	_, err = pgx.ForEachRow(rows, []any{&key, &last}, func() error {
		before[string(key)] = last
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("note sequences: %w", err)
	}
	return gapsIn(events, before), nil
}

// gapsIn returns the events whose number does not follow, given the last numbers before them.
func gapsIn(events []Event, before map[string]int64) (gaps []gap) {
	for _, e := range events {
		if e.Sequence == 0 || len(e.Key) == 0 {
			continue
		}

		key := string(aggregate(e.Key))
		last, known := before[key]
		switch {
		case !known && e.Sequence > 1:
			gaps = append(gaps, gap{Unknown, e, 0})
		case known && e.Sequence <= last:
			gaps = append(gaps, gap{Repeated, e, last})
		case known && e.Sequence > last+1:
			gaps = append(gaps, gap{Missing, e, last})
		}

		// A late event must not set the number back.
		before[key] = max(last, e.Sequence)
	}

	return gaps
}

// gapsNamed is how many gaps of a batch the log names; for a whole topic the count is enough.
const gapsNamed = 10

// tellGaps counts gaps and names them, once their events have taken effect.
func (c *Consumer) tellGaps(ctx context.Context, gaps []gap) {
	for i, g := range gaps {
		c.OnGap(g.kind)
		if i < gapsNamed {
			c.Log.WarnContext(ctx, "event out of sequence", "kind", g.kind,
				"topic", g.event.Topic, "key", string(bytes.ToValidUTF8(g.event.Key, nil)),
				"sequence", g.event.Sequence, "last_sequence", g.last, "event_id", g.event.ID,
				"partition", g.event.Partition, "offset", g.event.Offset)
		}
	}

	if n := len(gaps) - gapsNamed; n > 0 {
		c.Log.WarnContext(ctx, "more events out of sequence", "events", n)
	}
}

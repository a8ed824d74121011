package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultRetention is twice Kafka's default: a week each of retention.ms and segment.ms.
const DefaultRetention = 30 * 24 * time.Hour

const (
	upkeepEvery = 10 * time.Minute
	upkeepAgain = 10 * time.Second // while the retention is too short, or a topic does not exist yet
	upkeepRetry = 5 * time.Second  // after a consumer held a lock for longer than 50 ms
	margin      = 24 * time.Hour   // for clocks, time zones, and Kafka deleting late
)

// upkeep makes and drops the days of the inbox until ctx ends. The database serializes its callers.
func (c *Consumer) upkeep(ctx context.Context, m *member) {
	told := ""
	for ctx.Err() == nil {
		wait := upkeepEvery

		// While the retention is not known to suffice, days are made but none is dropped.
		short := c.covers(ctx, m)
		if ctx.Err() != nil {
			return
		}
		c.OnHorizon(short)

		if short != nil {
			wait = upkeepAgain
			if told != short.Error() {
				c.Log.ErrorContext(ctx,
					"the inbox is not trimmed: it may have to know events for longer than its retention",
					"retention", c.Retention, "error", short)
			}
			told = short.Error()
		}

		if err := c.keepDays(ctx, short == nil); err != nil && ctx.Err() == nil {
			wait = upkeepRetry
			if !lostRace(err) {
				c.Log.WarnContext(ctx, "inbox partitions not kept, trying again", "error", err)
			}
		}

		sleep(ctx, wait)
	}
}

const dropDays = `SELECT inbox_events_drop_partitions($1, $2)`

// 1,000 at a time: a transaction that deletes all of a day would block its aggregates.
const forgetSequences = `
DELETE FROM inbox_sequences s
USING (SELECT topic, key FROM inbox_sequences WHERE consumer = $1 AND day < (SELECT day FROM inbox_horizon) ORDER BY day LIMIT 1000) old
WHERE s.consumer = $1 AND s.topic = old.topic AND s.key = old.key AND s.day < (SELECT day FROM inbox_horizon)`

// keepDays makes the partitions of today and tomorrow. If the retention covers the topics, it
// drops what is older.
func (c *Consumer) keepDays(ctx context.Context, covered bool) error {
	now := time.Now()
	if err := MakeDays(ctx, c.DB, now, now.Add(24*time.Hour)); err != nil {
		return err
	}

	var keepDays *int // nil: keep everything
	if covered {
		keepDays = new(int((c.Retention + 24*time.Hour - 1) / (24 * time.Hour)))
	}

	var dropped int
	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, dropDays, c.Name, keepDays).Scan(&dropped)
	})
	if err != nil {
		return fmt.Errorf("drop inbox partitions: %w", err)
	}
	if dropped > 0 {
		c.Log.InfoContext(ctx, "inbox partitions dropped", "dropped", dropped)
	}

	for forgotten := int64(1); forgotten > 0 && ctx.Err() == nil; {
		err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, forgetSequences, c.Name)
			forgotten = tag.RowsAffected()
			return err
		})
		if err != nil {
			return fmt.Errorf("forget sequences: %w", err)
		}
	}

	return nil
}

// covers returns why the retention may be shorter than the time a record can still be delivered,
// or nil.
func (c *Consumer) covers(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	longest, err := m.longest(ctx)
	switch {
	case err != nil:
		return err
	case longest+margin > c.Retention:
		return fmt.Errorf("a topic may keep a record for %s (retention.ms and segment.ms)", longest)
	}

	return nil
}

const measureLetters = `
WITH RECURSIVE ` + openAggregates + `
SELECT (SELECT count(*) FROM inbox_dead_letters WHERE consumer = $1 AND state = 'parked' AND reason IS NOT NULL),
  (SELECT count(*) FROM aggregates WHERE key <> '') +
  (SELECT count(*) FROM aggregates a JOIN inbox_dead_letters l ON l.consumer = $1 AND l.topic = a.topic AND l.key = a.key
   WHERE a.key = '' AND l.state IN ('parked', 'retry'))`

// measureLetters reports to OnLetters. It ignores errors: the session logs outages of the database.
func (c *Consumer) measureLetters(ctx context.Context) {
	var undecided, aggregates int64
	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, measureLetters, c.Name).Scan(&undecided, &aggregates)
	})

	if err == nil {
		c.OnLetters(undecided, aggregates)
	}
}

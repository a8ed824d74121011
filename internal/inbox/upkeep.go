package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultRetention is twice what Kafka keeps by default: retention.ms and segment.ms are a week each.
const DefaultRetention = 30 * 24 * time.Hour

const (
	upkeepEvery = 10 * time.Minute
	upkeepAgain = time.Minute     // while the retention is too short, or a topic does not exist yet
	upkeepRetry = 5 * time.Second // after a lock that a consumer held for longer than 50 ms
	margin      = 24 * time.Hour  // clocks, time zones, and how late Kafka deletes
)

// upkeep keeps the days of the inbox until ctx ends. In the database one caller works after the other.
func (c *Consumer) upkeep(ctx context.Context, m *member) {
	told := ""
	for ctx.Err() == nil {
		wait := upkeepEvery
		short := c.covers(ctx, m)
		if ctx.Err() != nil {
			return
		}
		c.OnHorizon(short)
		if short != nil {
			wait = upkeepAgain
			if told != short.Error() {
				c.Log.ErrorContext(ctx, "the inbox is not trimmed: it may have to know events for longer than its retention",
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

// In bites: a transaction that deletes all of a day would hold up its aggregates.
const forgetSequences = `
DELETE FROM inbox_sequences s
USING (SELECT topic, key FROM inbox_sequences WHERE consumer = $1 AND day < (SELECT day FROM inbox_horizon) ORDER BY day LIMIT 1000) old
WHERE s.consumer = $1 AND s.topic = old.topic AND s.key = old.key AND s.day < (SELECT day FROM inbox_horizon)`

// keepDays makes today's and tomorrow's partition. If the retention covers the topics, it drops what is older.
func (c *Consumer) keepDays(ctx context.Context, covered bool) error {
	now := time.Now()
	if err := MakeDays(ctx, c.DB, now, now.Add(24*time.Hour)); err != nil {
		return err
	}

	var keepDays *int // nil: for all time
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

// covers returns why the retention may be shorter than the time for which a record can be delivered.
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

// measureLetters says nothing of a database that is away: the session does.
func (c *Consumer) measureLetters(ctx context.Context) {
	var undecided, aggregates int64
	err := c.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, measureLetters, c.Name).Scan(&undecided, &aggregates)
	})
	if err == nil {
		c.OnLetters(undecided, aggregates)
	}
}

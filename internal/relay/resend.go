package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Resend sends events again that a relay has sent before, for the day on which the broker has lost
// what it acknowledged. It may run beside the relay, whose cursor it only reads:
//
//   - What the cursor has not passed, stragglers among it, is left to the relay, and so is what
//     waits behind a dead letter. An event that an operator gave up stays given up.
//   - Events go out in the order of their ids, which is that of their aggregates. Beside a running
//     relay, an aggregate's older events arrive behind its newer ones.
//   - The records are those of the first time, so consumers recognise what they have by its id.
//
// It reads in statements of some milliseconds and never holds a snapshot.
type Resend struct {
	DB        *pgxpool.Pool
	Relay     string // its name
	Topic     string // only events of this aggregate type; empty: all
	Aggregate string // only those of this aggregate; empty: all
}

// maxResend is how many events are sent, or counted, together. On a small table the planner takes a
// larger limit for all there is, and sorts it.
const maxResend = 1000

// The cursor's snapshots say what was sent, see behind. A letter that waits holds the later events
// of its aggregate, even if they have none of their own.
const sentBefore = `
  (o.id <= $3 AND pg_visible_in_snapshot(o.xid, $4::text::pg_snapshot)
   OR o.id <= $5 AND pg_visible_in_snapshot(o.xid, nullif($6, '')::pg_snapshot))`

// Both are scalars, so each row looks its own letters up: EXISTS may go through all of the relay's.
const skippedBefore = `
  coalesce((SELECT state FROM outbox_dead_letters WHERE relay = $7 AND id = o.id), '') = 'skipped'`

const parkedNow = `
  coalesce((SELECT min(id) FROM outbox_dead_letters
            WHERE relay = $7 AND aggregate_type = o.aggregate_type
              AND aggregate_id = o.aggregate_id AND state IN ('parked', 'retry')) <= o.id, false)`

const wanted = `($8 = '' OR o.aggregate_type = $8) AND ($9 = '' OR o.aggregate_id = $9)`

// countEvents goes through the next rows of the index on id. octet_length reads no payload that is
// stored apart. The limit is a literal, which the planner knows. The end of the range is outside: of
// two bounds on id it expects so few rows that it would sort all there are, for each batch.
func countEvents(limit int) string {
	return fmt.Sprintf(`
SELECT o.aggregate_type,
       CASE WHEN NOT (`+wanted+`) THEN 'other' WHEN NOT `+sentBefore+` THEN 'unsent'
            WHEN `+skippedBefore+` THEN 'skipped' WHEN `+parkedNow+` THEN 'parked' ELSE 'sent' END,
       count(*), sum(octet_length(o.payload) + octet_length(o.headers::text)),
       min(o.id), max(o.id), min(o.created_at), max(o.created_at)
FROM (SELECT * FROM outbox_events WHERE id > $1 ORDER BY id LIMIT %d) o
WHERE o.id <= $2
GROUP BY 1, 2`, limit)
}

// readEvents are those that are sent, of the rows that were counted. It has no limit of its own: an
// event that was committed since would push the last one out, unseen.
const readEvents = `
SELECT '', 0::bigint, o.id, o.event_id, o.aggregate_type, o.aggregate_id, o.aggregate_version,
       o.event_type, o.payload, o.headers::text, o.created_at
FROM outbox_events o
WHERE o.id > $1 AND o.id <= $2
  AND ` + wanted + ` AND ` + sentBefore + ` AND NOT ` + skippedBefore + ` AND NOT ` + parkedNow + `
ORDER BY o.id`

func (r Resend) arguments(s Span, after, until int64) []any {
	return []any{after, until, s.sent.Last, s.sent.Seen, s.sent.ChunkAfter, s.sent.ChunkSeen,
		r.Relay, r.Topic, r.Aggregate}
}

// Count counts what Send would send. progress, which may be nil, sees the count as it grows and
// the id that it has reached.
func (r Resend) Count(
	ctx context.Context, s Span, progress func(t Tally, id int64),
) (t Tally, err error) {
	w := walk{Resend: r, span: s, at: s.FromID - 1}
	for {
		last, err := w.next(ctx, maxResend, &t)
		if err != nil || last == 0 {
			return t, err
		}

		w.at = last
		if progress != nil {
			progress(t, last)
		}
	}
}

// Send sends the events of a span, not faster than rate events a second. publish is like that of a
// Publisher, without progress.
//
// It returns what was sent and, with an error, the id from which on to send again. When ctx ends, the
// batch in hand is finished, and the error is ctx's.
func (r Resend) Send(
	ctx context.Context, s Span, rate int, publish func(context.Context, []Message) error,
	progress func(t Tally, id int64),
) (t Tally, next int64, err error) {
	w, p, b := walk{Resend: r, span: s, at: s.FromID - 1}, pace{rate: rate}, &batch{}
	for {
		var counted Tally
		last, err := w.next(ctx, p.batch(), &counted)
		if err != nil || last == 0 {
			return t, w.at + 1, err
		}

		// Large events come in several batches.
		sent := 0
		for done := false; !done; {
			args := r.arguments(s, w.at, last)
			if err := b.query(ctx, r.DB, readTimeout, p.batch(), readEvents, args...); err != nil {
				return t, w.at + 1, fmt.Errorf("read outbox: %w", err)
			}
			if err := p.rest(ctx, b.n); err != nil {
				return t, w.at + 1, err
			}

			if err := publishAgain(ctx, publish, b.messages(), &w.at); err != nil {
				return t, w.at + 1, err
			}
			sent += b.n
			if done = b.n == len(b.found); done {
				w.at = last
			}
		}

		// A day that was dropped since the count took its events along.
		if int64(sent) < counted.Events() {
			if err := w.kept(ctx, w.oldest); err != nil {
				return t, w.at + 1, err
			}
		}
		t.add(counted)
		progress(t, last)
	}
}

// rest waits until n events may be sent.
func (p *pace) rest(ctx context.Context, n int) error {
	sleep(ctx, p.wait(time.Now(), n))
	return ctx.Err()
}

// publishAgain publishes a batch, although ctx may end meanwhile, and moves at behind what is
// durable.
func publishAgain(
	ctx context.Context, publish func(context.Context, []Message) error, ms []Message, at *int64,
) error {
	if len(ms) == 0 {
		return nil
	}

	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), publishTimeout, errSlow)
	defer cancel()
	err := publish(ctx, ms)
	failed, part := errors.AsType[*BatchError](err)
	switch {
	case err == nil:
		*at = ms[len(ms)-1].ID
		return nil
	case part && failed.Refused:
		err = fmt.Errorf("the broker refuses event %d: %w", ms[failed.Index].ID, failed.Err)
	}

	if part && failed.Durable > 0 {
		*at = ms[failed.Durable-1].ID
	}
	return err
}

// walk goes through the rows of a span in the order of their ids.
type walk struct {
	Resend
	span   Span
	at     int64     // all up to here were reached
	newest time.Time // of the rows that were reached
	oldest time.Time // of the last ones that next counted
}

// next adds up to limit rows behind the place to t, and returns the id of the last; 0: there is none.
func (w *walk) next(ctx context.Context, limit int, t *Tally) (last int64, err error) {
	var state string
	var c TopicTally
	var newest, oldest time.Time
	rows, _ := w.DB.Query(ctx, countEvents(limit), w.arguments(w.span, w.at, w.span.UntilID)...)
	_, err = pgx.ForEachRow(rows, []any{
		&c.Topic, &state, &c.Events, &c.Bytes, &c.FirstID, &c.LastID, &c.Earliest, &c.Latest,
	}, func() error {
		last = max(last, c.LastID)
		if newest.Before(c.Latest) {
			newest = c.Latest
		}
		if oldest.IsZero() || oldest.After(c.Earliest) {
			oldest = c.Earliest
		}
		t.count(state, c)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read outbox: %w", err)
	}

	// Until a minute of the day that is the first now was reached, the day before is not passed.
	if err := w.kept(ctx, w.newest.Add(-clockSlack)); err != nil {
		return 0, err
	}

	if w.newest.Before(newest) {
		w.newest = newest
	}
	w.oldest = oldest
	return last, nil
}

// kept returns a NotKeptError if events from a moment on were dropped since the span was made. What is
// dropped leaves no gap that could be told from that of a rollback, so look after each read.
func (w *walk) kept(ctx context.Context, from time.Time) error {
	day, err := w.oldestDay(ctx)
	if err == nil && day.After(w.span.Oldest) && from.Before(day) {
		err = &NotKeptError{Day: day, During: true}
	}
	return err
}

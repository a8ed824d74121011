package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Ends say which events to send again: from one of three places, up to a place or to where the
// relay is.
type Ends struct {
	FromID     int64
	FromTime   time.Time
	FromOldest bool // whatever is left

	UntilID   int64     // zero: no limit
	UntilTime time.Time // likewise
}

// before reports whether the range begins before what is kept.
func (e Ends) before(id int64, day time.Time) bool {
	switch {
	case e.FromOldest:
		return false
	case !e.FromTime.IsZero():
		return e.FromTime.Before(day)
	}
	return e.FromID < id
}

// Span is a range of the outbox that a relay has sent, but for what committed late in it.
type Span struct {
	FromID  int64     // the first
	UntilID int64     // the last
	Oldest  time.Time // the day of the oldest partition: what was before it is dropped

	sent Position // what the relay had sent when the span was made
}

// NotKeptError says that events of a span were dropped from the outbox.
type NotKeptError struct {
	ID     int64     // the oldest event that is kept
	Day    time.Time // the first day that is kept
	During bool      // they were dropped while the span was read
}

func (e *NotKeptError) Error() string {
	if e.During {
		return fmt.Sprintf("the outbox has dropped its days before %s meanwhile, and some of their "+
			"events were not reached: raise OUTBOX_RETENTION of the relays", e.Day.Format(time.DateOnly))
	}
	return fmt.Sprintf("the outbox keeps events from id %d and %s UTC on, and the range begins before",
		e.ID, e.Day.Format(time.DateOnly))
}

// ErrNothingSent says that no relay of this name has sent anything.
var ErrNothingSent = errors.New("no relay of this name has sent anything, or its cursor was deleted")

// clockSlack is how long a transaction takes at most, with room: an event is dated when its
// transaction begins and numbered when it is written. So a time is found in the ids up to that much
// too early, or too late at the end, and never the other way round.
const clockSlack = time.Minute

// The cursor means nothing in another database than its own, see lookAtLease.
const lookAtSent = `
SELECT c.last_id, c.seen::text, coalesce(c.chunk_after, 0), coalesce(c.chunk_seen::text, ''),
       c.system_identifier <> s.system_identifier OR c.database_oid <> d.oid
       OR EXISTS (SELECT FROM outbox_events WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
FROM outbox_cursors c, pg_control_system() s, pg_database d
WHERE c.relay = $1 AND d.datname = current_database()`

// Read from the catalog: an empty day is kept as well.
const oldestDay = `
SELECT min(to_date(right(c.relname, 8), 'YYYYMMDD'))
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'outbox_events'::regclass AND c.relname ~ '_[0-9]{8}$'`

// Span returns the range between the ends. It ends where the relay's cursor is: what that has not
// passed is the running relay's to send. If events at its beginning were dropped, the error is a
// NotKeptError.
func (r Resend) Span(ctx context.Context, ends Ends) (Span, error) {
	var restored bool
	var s Span
	err := r.DB.QueryRow(ctx, lookAtSent, r.Relay).Scan(
		&s.sent.Last, &s.sent.Seen, &s.sent.ChunkAfter, &s.sent.ChunkSeen, &restored)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && s.sent.Last == 0:
		return Span{}, ErrNothingSent
	case err != nil:
		return Span{}, fmt.Errorf("read the cursor: %w", err)
	case restored:
		return Span{}, ErrRestored
	}

	if s.Oldest, err = r.oldestDay(ctx); err != nil {
		return Span{}, err
	}
	oldest, _, found, err := r.eventFrom(ctx, 0)
	if err != nil {
		return Span{}, err
	}
	if !found {
		oldest = s.sent.Last + 1 // all that was sent is dropped
	}
	if ends.before(oldest, s.Oldest) {
		return Span{}, &NotKeptError{ID: oldest, Day: s.Oldest}
	}

	// Every end at its place in the ids.
	s.FromID, s.UntilID = max(ends.FromID, oldest), s.sent.Last
	if !ends.FromTime.IsZero() {
		if s.FromID, err = r.firstAt(ctx, oldest, s.UntilID, ends.FromTime.Add(-clockSlack)); err != nil {
			return Span{}, err
		}
	}
	if ends.UntilID > 0 {
		s.UntilID = min(s.UntilID, ends.UntilID)
	}
	if !ends.UntilTime.IsZero() {
		end, err := r.firstAt(ctx, oldest, s.UntilID, ends.UntilTime.Add(clockSlack))
		if err != nil {
			return Span{}, err
		}
		s.UntilID = min(s.UntilID, end-1)
	}

	return s, nil
}

func (r Resend) oldestDay(ctx context.Context) (time.Time, error) {
	var day time.Time
	if err := r.DB.QueryRow(ctx, oldestDay).Scan(&day); err != nil {
		return day, fmt.Errorf("look for the oldest day of the outbox: %w", err)
	}
	return day, nil
}

// firstAt returns the first of the ids low to high at which the outbox has reached t, or one above
// high. There is no index on time: it halves the ids, 30 look-ups for a billion.
func (r Resend) firstAt(ctx context.Context, low, high int64, t time.Time) (int64, error) {
	for end := high + 1; low < end; {
		middle := low + (end-low)/2
		id, created, found, err := r.eventFrom(ctx, middle)
		switch {
		case err != nil:
			return 0, err
		case !found || !created.Before(t):
			end = middle
		default:
			low = id + 1
		}
	}
	return low, nil
}

const firstEvent = `SELECT id, created_at FROM outbox_events WHERE id > $1 ORDER BY id LIMIT 1`

// eventFrom returns the first event with this id or a higher one.
func (r Resend) eventFrom(
	ctx context.Context, from int64,
) (id int64, created time.Time, found bool, err error) {
	err = r.DB.QueryRow(ctx, firstEvent, from-1).Scan(&id, &created)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, created, false, nil
	case err != nil:
		return 0, created, false, fmt.Errorf("look for an event: %w", err)
	}
	return id, created, true, nil
}

package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// stallLeases is for how many leases nothing moves in a stall: a change of leader takes one, and a
// leader that cannot publish steps down after some more.
const stallLeases = 5

// Stalls finds out whether events wait and none moves. It asks the database, as any session may:
// a leader whose loop is stuck still renews its lease and believes that all is well. Set the fields,
// then call Look every few seconds, from one or more goroutines.
//
// Events of a transaction that has not committed do not wait: nobody can see them yet. Nor do those
// of parked aggregates: the cursor has passed them.
type Stalls struct {
	Relay string        // as Relay.Name
	Lease time.Duration // as Relay.Lease

	mu      sync.Mutex
	batches int64     // where the cursor was at the last looks
	since   time.Time // of the first of them at which something waited; zero: nothing did
}

// Stall is what an operator needs to know about events that wait while none moves.
type Stall struct {
	Oldest  time.Duration // age of the first event that waits
	Still   time.Duration // since the cursor moved; it is Oldest if no relay ever led
	Holder  string        // who led last; empty: nobody did
	Leads   bool          // its lease has not run out
	Blocked string        // who holds the lock that a relay waits for; empty: none does
}

func (s *Stall) String() string {
	text := fmt.Sprintf("events wait, the oldest for %s, and the cursor has not moved for %s",
		s.Oldest.Round(time.Second), s.Still.Round(time.Second))
	if s.Blocked != "" {
		text += "; the relay waits for a lock of " + s.Blocked
	}
	return text
}

// The end of an index and a row by its key, however many events wait.
const lookForStall = `
SELECT clock_timestamp(),
       (SELECT created_at FROM outbox_events WHERE id > coalesce(c.last_id, 0) ORDER BY id LIMIT 1),
       c.moved_at, coalesce(c.holder, ''), coalesce(c.lease_until > clock_timestamp(), false),
       coalesce(c.batches, 0), coalesce(c.last_id, 0), coalesce(c.seen, pg_current_snapshot())::text,
       coalesce(c.chunk_after, 0), coalesce(c.chunk_seen::text, '')
FROM (SELECT) one LEFT JOIN outbox_cursors c ON c.relay = $1`

// A role sees what its own sessions wait for, and of others' the name. A prepared transaction has no
// session: its pid is 0.
const lockHolders = `
SELECT coalesce(string_agg(DISTINCT format('pid %s (%s, %s)', h.pid, b.usename, b.application_name), ', '), '')
FROM pg_stat_activity w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) h(pid)
LEFT JOIN pg_stat_activity b ON b.pid = h.pid
WHERE w.datname = current_database() AND w.usename = current_user AND w.wait_event_type = 'Lock'`

// Look returns nil unless events wait and none has moved for 5 leases. It takes one connection and
// some milliseconds. By the database's times alone, a transaction that was open for long would be a
// stall when it commits; so an earlier look, a lease ago or more, must have found the same.
func (s *Stalls) Look(ctx context.Context, db *pgxpool.Pool) (*Stall, error) {
	found, p, err := s.ask(ctx, db)
	if err != nil {
		s.note(false, 0) // the relay could not ask either: let it try first
		return nil, fmt.Errorf("look for a stall: %w", err)
	}

	seen := s.note(found != nil, p.Batches)
	if found == nil || seen < s.Lease || min(found.Oldest, found.Still) < stallLeases*s.Lease {
		return nil, nil
	}

	_ = db.QueryRow(ctx, lockHolders).Scan(&found.Blocked) // without it, it is a stall all the same
	return found, nil
}

// ask returns nil if nothing waits, and where the cursor is.
func (s *Stalls) ask(ctx context.Context, db *pgxpool.Pool) (*Stall, Position, error) {
	var now time.Time // by the database's clock, as the others are
	var first, moved *time.Time
	var found Stall
	var p Position
	err := db.QueryRow(ctx, lookForStall, s.Relay).Scan(&now, &first, &moved, &found.Holder,
		&found.Leads, &p.Batches, &p.Last, &p.Seen, &p.ChunkAfter, &p.ChunkSeen)
	if err != nil {
		return nil, p, err
	}

	// Only without newer events: after an outage, stragglers would be looked for among very many.
	if first == nil {
		var late batch
		if err := late.read(ctx, db, 1, p); err != nil {
			return nil, p, err
		}
		if late.n == 0 {
			return nil, p, nil
		}
		first = &late.found[0].CreatedAt
	}

	found.Oldest = now.Sub(*first)
	found.Still = found.Oldest
	if moved != nil {
		found.Still = now.Sub(*moved)
	}
	return &found, p, nil
}

// note returns for how long something has waited, at every look, while the cursor was in one place.
func (s *Stalls) note(waits bool, batches int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	switch {
	case !waits:
		s.since = time.Time{}
		return 0
	case s.since.IsZero() || s.batches != batches:
		s.since, s.batches = time.Now(), batches
	}
	return time.Since(s.since)
}

package httpapi

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/payments"
)

// readSettled is readOne for what the PSP may be at work on. If the client prefers to wait, it reads
// again when the PSP's result is there, or when the time is over.
func readSettled[T any](
	c *call, s *server,
	find func(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (T, error), unsettled func(T) bool,
) (T, error) {
	v, err := readOne(c, s, find)
	wait, asked := preferredWait(c.Header)
	if err != nil || !asked {
		return v, err
	}

	waited := true
	if unsettled(v) && wait > 0 {
		// Its turn goes to another read meanwhile.
		c.done()
		c.done = func() {}

		id, _ := c.pathID() // readOne has read it
		waited = s.settlements.wait(c.Context(), c.tenant(), id, wait)
		v, err = readOne(c, s, find)
	}

	if waited { // otherwise too many wait already, and the preference is ignored
		c.header.Set("Preference-Applied", "wait="+strconv.Itoa(int(wait.Seconds())))
	}
	return v, err
}

const (
	// maxWaiters is how many reads of a tenant wait at a time: each holds a connection of its client
	// and some 30 KiB. A client whose read may not wait gets its answer at once, and asks again.
	maxWaiters = 500
	// lookEvery is how often one of a tenant's waiting reads looks for all of them.
	lookEvery = 50 * time.Millisecond
)

// settlements lets reads wait until the PSP's result was recorded. Most of the time they hold
// neither a database connection nor a turn. However many wait, a tenant looks twenty times a second.
type settlements struct {
	// look returns which of the ids are settled.
	look func(ctx context.Context, tenant uuid.UUID, ids []uuid.UUID) ([]uuid.UUID, error)

	mu sync.Mutex
	of map[uuid.UUID]*waiters // tenants with reads that wait, no others
}

// waiters are a tenant's reads that wait.
type waiters struct {
	looking chan struct{} // holds one element while one of them looks for all
	reads   []*waiter
}

type waiter struct {
	id      uuid.UUID
	settled chan struct{} // closed
}

// wait returns when id is settled, after the patience at the latest. It returns false, at once, if too
// many wait already.
func (s *settlements) wait(
	ctx context.Context, tenant, id uuid.UUID, patience time.Duration,
) bool {
	all, mine := s.enter(tenant, id)
	if mine == nil {
		return false
	}
	defer s.leave(tenant, mine)

	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		select {
		case <-mine.settled:
			return true
		case <-waiting.Done():
			return true
		case all.looking <- struct{}{}:
		}

		// It is this one's turn to look for all. Its own patience ends the pause and not the look,
		// because a query that is broken off costs a connection.
		if !isClosed(mine.settled) && sleep(waiting, lookEvery) {
			s.lookForAll(ctx, tenant, all)
		}
		<-all.looking
	}
}

func (s *settlements) enter(tenant, id uuid.UUID) (*waiters, *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()

	all := s.of[tenant]
	if all == nil {
		all = &waiters{looking: make(chan struct{}, 1)}
		s.of[tenant] = all
	}
	if len(all.reads) >= maxWaiters {
		return nil, nil
	}

	mine := &waiter{id, make(chan struct{})}
	all.reads = append(all.reads, mine)
	return all, mine
}

func (s *settlements) leave(tenant uuid.UUID, mine *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()

	all := s.of[tenant]
	all.reads = slices.DeleteFunc(all.reads, func(w *waiter) bool { return w == mine })
	if len(all.reads) == 0 {
		delete(s.of, tenant)
	}
}

// lookForAll wakes those whose id is settled. After an error they wait on: the next look, or the read
// at the end, says what is the matter.
func (s *settlements) lookForAll(ctx context.Context, tenant uuid.UUID, all *waiters) {
	s.mu.Lock()
	var ids []uuid.UUID
	for _, w := range all.reads {
		ids = append(ids, w.id)
	}
	s.mu.Unlock()

	settled, err := s.look(ctx, tenant, ids)
	if err != nil {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range all.reads {
		if slices.Contains(settled, w.id) && !isClosed(w.settled) {
			close(w.settled)
		}
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// settled returns which payments and refunds are settled, in one of the tenant's turns to read.
func (s *server) settled(
	ctx context.Context, tenant uuid.UUID, ids []uuid.UUID,
) ([]uuid.UUID, error) {
	done, err := s.admission.read(ctx, tenant)
	if err != nil {
		return nil, err
	}
	defer done()

	return asTenant(ctx, s.Read, pgx.RepeatableRead, tenant, func(tx pgx.Tx) ([]uuid.UUID, error) {
		return payments.FindSettled(ctx, tx, tenant, ids)
	})
}

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/groupcommit"
)

const (
	// maxInFlight is how many of a tenant's requests are with the committers while other tenants
	// are active. Requests commit in the order they arrive, so the next tenant's request waits for
	// about this many.
	maxInFlight = 32
	// lowWater is the in-flight count at which the next wave is admitted. Waves of one batch each
	// keep one committer busy instead of all of them.
	lowWater = maxInFlight / 8
	// contentionWindow is how long after its last request a tenant counts as active.
	contentionWindow = 10 * time.Second
)

// shares bounds the requests in progress of each tenant. While several tenants are active, it
// passes a tenant's requests to the committers only as fast as they are done, so that they wait
// here, behind each other, and not in the common queue. A tenant that is alone may use all of the
// queue.
type shares struct {
	most int // in progress
	now  func() time.Time

	mu      sync.Mutex
	of      map[uuid.UUID]*share // tenants with requests in progress, no others
	last    uuid.UUID            // the tenant of the latest request
	changed time.Time            // when the latest request was another tenant's than the one before
}

type share struct {
	inFlight int             // with the committers
	waiting  []chan struct{} // each is closed when its turn comes
}

func newShares(most int, now func() time.Time) *shares {
	if most == 0 {
		most = math.MaxInt
	}
	return &shares{most: most, now: now, of: map[uuid.UUID]*share{}}
}

var errTooMany = errors.New("too many requests of this tenant are in progress")

// take waits until a request of the tenant may go to the committers. Call giveBack after a take
// without an error. The error is errTooMany, or groupcommit.ErrNotBegun when ctx ends first.
func (s *shares) take(ctx context.Context, tenant uuid.UUID) error {
	turn, err := s.enter(tenant)
	if turn == nil {
		return err
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		s.leave(tenant, turn)
		return fmt.Errorf("%w: %w", groupcommit.ErrNotBegun, context.Cause(ctx))
	}
}

// enter returns what to wait for; nil: nothing.
func (s *shares) enter(tenant uuid.UUID) (turn chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	// Two tenants by turns keep the window open.
	if tenant != s.last && s.last != uuid.Nil {
		s.changed = s.now()
	}
	s.last = tenant

	mine := s.of[tenant]
	if mine == nil {
		mine = &share{}
		s.of[tenant] = mine
	}

	switch {
	case mine.inFlight+len(mine.waiting) >= s.most:
		return nil, errTooMany
	case mine.inFlight < s.width() && len(mine.waiting) == 0:
		mine.inFlight++
		return nil, nil
	}
	turn = make(chan struct{})
	mine.waiting = append(mine.waiting, turn)
	return turn, nil
}

// width is how many of a tenant's requests may be with the committers now.
func (s *shares) width() int {
	if s.changed.IsZero() || s.now().Sub(s.changed) > contentionWindow {
		return s.most
	}
	return min(s.most, maxInFlight)
}

func (s *shares) leave(tenant uuid.UUID, turn chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()

	mine := s.of[tenant]
	if i := slices.Index(mine.waiting, turn); i >= 0 {
		mine.waiting = slices.Delete(mine.waiting, i, i+1)
	} else {
		s.done(tenant, mine) // its turn came at the same moment
	}
}

func (s *shares) giveBack(tenant uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done(tenant, s.of[tenant])
}

func (s *shares) done(tenant uuid.UUID, mine *share) {
	mine.inFlight--
	if mine.inFlight > lowWater && s.width() < s.most {
		return
	}

	// Admit the next wave.
	for len(mine.waiting) > 0 && mine.inFlight < s.width() {
		close(mine.waiting[0])
		mine.waiting = mine.waiting[1:]
		mine.inFlight++
	}
	if mine.inFlight == 0 {
		delete(s.of, tenant)
	}
}

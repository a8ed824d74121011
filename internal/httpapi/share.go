package httpapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/groupcommit"
)

const (
	// crowded is how many requests of a tenant are with the committers at a time while other tenants send as well. They are committed in
	// the order in which they came, so whoever comes next waits for about as many.
	crowded = 32
	// left is how few of these must be left before the next are let through. So they come in waves, one batch each, and keep one committer
	// busy rather than all.
	left = crowded / 8
	// company is how long after its last request a tenant counts as there.
	company = 10 * time.Second
)

// shares bounds what the API has in hand of each tenant, and lets one tenant's requests to the committers no faster than they are done, so
// that they wait here, behind each other, and not in everybody's queue. A tenant without company may have all of it.
type shares struct {
	most int // in hand; 0: no bounds at all
	now  func() time.Time

	mu      sync.Mutex
	of      map[uuid.UUID]*share // tenants with requests in hand, no others
	last    uuid.UUID            // who sent the latest request
	changed time.Time            // when it was somebody else than before
}

type share struct {
	committing int
	waiting    []chan struct{} // each is closed when it is its turn
}

func newShares(most int, now func() time.Time) *shares {
	return &shares{most: most, now: now, of: map[uuid.UUID]*share{}}
}

// errTooMany says that the tenant has as many in hand as it may.
var errTooMany = errors.New("too many requests of this tenant are being worked on")

// take waits until a request of the tenant may go to the committers. Without an error, giveBack follows. The error is errTooMany, or
// groupcommit.ErrNotBegun when the request's time is up.
func (s *shares) take(ctx context.Context, tenant uuid.UUID) error {
	if s.most <= 0 {
		return nil
	}
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
	case mine.committing+len(mine.waiting) >= s.most:
		return nil, errTooMany
	case mine.committing < s.width() && len(mine.waiting) == 0:
		mine.committing++
		return nil, nil
	}
	turn = make(chan struct{})
	mine.waiting = append(mine.waiting, turn)
	return turn, nil
}

// width is how many of a tenant's requests may be with the committers now.
func (s *shares) width() int {
	if s.changed.IsZero() || s.now().Sub(s.changed) > company {
		return s.most
	}
	return min(s.most, crowded)
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
	if s.most <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done(tenant, s.of[tenant])
}

func (s *shares) done(tenant uuid.UUID, mine *share) {
	mine.committing--
	if mine.committing > left && s.width() < s.most {
		return
	}
	for len(mine.waiting) > 0 && mine.committing < s.width() {
		close(mine.waiting[0])
		mine.waiting = mine.waiting[1:]
		mine.committing++
	}
	if mine.committing == 0 {
		delete(s.of, tenant)
	}
}

package httpapi

import (
	"sync"

	"github.com/google/uuid"
)

// shares bounds how many requests of a tenant are with the committers at a time. They take requests in the order in which these
// came, so a tenant that sends more than can be committed would otherwise fill the queue, and everybody would wait behind it.
type shares struct {
	most int

	mu    sync.Mutex
	taken map[uuid.UUID]int // tenants with requests in flight, no others
}

func newShares(most int) *shares { return &shares{most: most, taken: map[uuid.UUID]int{}} }

// take says whether the tenant may have one more. If so, giveBack follows.
func (s *shares) take(tenant uuid.UUID) bool {
	if s.most <= 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[tenant] >= s.most {
		return false
	}
	s.taken[tenant]++
	return true
}

func (s *shares) giveBack(tenant uuid.UUID) {
	if s.most <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[tenant]--; s.taken[tenant] == 0 {
		delete(s.taken, tenant)
	}
}

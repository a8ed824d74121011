package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// stalls finds partitions on which records wait while none of them is handled. It asks the broker how
// far the group has come, not the session: a handler that never returns stops that, and the client
// beside it keeps the partitions.
type stalls struct {
	still map[partition]standstill // of the last look; only watch uses it

	mu    sync.Mutex
	why   map[partition]string // why the first record of a partition is not done
	found error                // by the last look
}

// standstill is a partition on which records wait.
type standstill struct {
	offset int64 // that the group has committed
	since  time.Time
}

// look returns the partitions that are stalled, and why as far as the session knows. waiting is what
// the broker says.
func (s *stalls) look(waiting map[partition]int64, after time.Duration, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	before := s.still
	s.still = map[partition]standstill{}
	var found []string
	for p, offset := range waiting {
		here, known := before[p]
		if !known || here.offset != offset {
			here = standstill{offset, now}
		}
		s.still[p] = here

		if took := now.Sub(here.since); took >= after {
			found = append(found, fmt.Sprintf("%s/%d at offset %d for %s%s", p.topic, p.number,
				max(offset, 0), took.Round(time.Second), s.reason(p)))
		}
	}

	s.found = nil
	if len(found) > 0 {
		slices.Sort(found)
		s.found = errors.New("stalled: records wait and none is handled: " + strings.Join(found, "; "))
	}
	return s.found
}

func (s *stalls) reason(p partition) string {
	why := cmp.Or(s.why[p], s.why[partition{}])
	if why == "" {
		return ""
	}
	return " (" + why + ")"
}

// blame keeps why nothing of a partition is done; the zero partition means all of them.
func (s *stalls) blame(p partition, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		s.why = map[partition]string{}
	}
	s.why[p] = why
}

// moved forgets why nothing was done.
func (s *stalls) moved(p partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.why, p)
	delete(s.why, partition{})
}

// err returns what the last look found.
func (s *stalls) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found
}

// lookForStall asks the broker which partitions do not move, and logs when that changes.
func (c *Consumer) lookForStall(
	ctx context.Context, m *member, behind map[partition]int64,
) error {
	before := c.stalls.err()

	// Without an answer the verdict stays: Ready says what is wrong with the broker.
	waiting, err := m.waiting(ctx, behind)
	if err != nil {
		return err
	}
	found := c.stalls.look(waiting, c.StallAfter, time.Now())
	c.OnStall(found)

	switch {
	case found != nil && before == nil:
		c.Log.ErrorContext(ctx, "records wait and none is handled", "error", found)
	case found == nil && before != nil:
		c.Log.InfoContext(ctx, "records are handled again")
	}
	return nil
}

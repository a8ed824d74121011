package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// stall finds out whether the work of a part waits while none of it ends: by what this worker ends
// itself, and by what the database shows every 2 s, because other workers may do the work.
//
// A part that is stalled makes /readyz fail, with the reason as far as it is known; /livez stays 200.
// A restart brings back neither a PSP nor a locked account, and delays what is claimed by its lease.
// No request is routed to a worker, so all that readiness does is to raise an alarm, and to hold up a
// deploy that makes it worse.
type stall struct {
	part    string
	after   time.Duration // 5 of the part's own periods
	metrics *telemetry.Worker

	mu     sync.Mutex
	looked time.Time
	last   work
	moved  time.Time // when work ended or none waited; by our clock
	found  error
}

// work is what waits for a part.
type work struct {
	waits bool
	count int64     // of what waits, at most some number
	first time.Time // what is the longest due
	ended time.Time // when something ended last, as far as that is known; by the database's clock
	why   string    // why it may be stuck
}

// lookMost is how old a look may be: measuring may be stuck as well.
const lookMost = 30 * time.Second

func newStall(part string, after time.Duration, metrics *telemetry.Worker) *stall {
	now := time.Now()
	return &stall{part: part, after: after, metrics: metrics, looked: now, moved: now}
}

// moves says that this worker has ended some of the work. Many may wait behind one that cannot end,
// and the database then shows the same first one at every look.
func (s *stall) moves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = time.Now()
}

// look compares what waits with the look before.
func (s *stall) look(w work) {
	s.mu.Lock()
	defer s.mu.Unlock()

	// Fewer than before, another first one, or something that has ended meanwhile: it moves.
	now := time.Now()
	if !w.waits || !s.last.waits || w.count < s.last.count ||
		!w.first.Equal(s.last.first) || w.ended.After(s.last.ended) {
		s.moved = now
	}
	s.last, s.looked, s.found = w, now, nil

	if still := now.Sub(s.moved); still >= s.after {
		s.found = fmt.Errorf("%s is stalled: work waits and none has ended for %s: %s",
			s.part, still.Round(time.Second), cmp.Or(w.why, "the log has the cause"))
	}
	s.metrics.Stalled(s.part, s.found != nil)
}

// unknown says that the database could not be asked. No part could do anything either, so the time
// starts again.
func (s *stall) unknown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.found = work{}, nil
	s.metrics.NoStalled(s.part)
}

// err returns why the part is not ready, or nil.
func (s *stall) err(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := time.Since(s.looked); s.found == nil && old > lookMost {
		return fmt.Errorf("%s: what waits could not be measured for %s", s.part, old.Round(time.Second))
	}
	return s.found
}

// probeTimeout is shorter than the 3 s for which the command health waits.
const probeTimeout = 2 * time.Second

// check returns why a worker is not ready, or nil.
type check func(context.Context) error

// ready returns all that keeps this worker from being ready.
func ready(ctx context.Context, checks []check) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	var errs []error
	for _, check := range checks {
		errs = append(errs, check(ctx))
	}
	return errors.Join(errs...)
}

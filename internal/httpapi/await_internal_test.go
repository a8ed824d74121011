package httpapi

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// ledger is what settlements look at.
type ledger struct {
	mu      sync.Mutex
	settled []uuid.UUID
	looks   atomic.Int64
	err     error
}

func (l *ledger) look(_ context.Context, _ uuid.UUID, ids []uuid.UUID) (found []uuid.UUID, err error) {
	l.looks.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if slices.Contains(l.settled, id) {
			found = append(found, id)
		}
	}
	return found, l.err
}

func (l *ledger) settle(id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled = append(l.settled, id)
}

func TestWaitingReadsLookTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{}
		s := settlements{look: l.look, of: map[uuid.UUID]*waiters{}}
		tenant, first, second := uuid.New(), uuid.New(), uuid.New()
		began := time.Now()
		var all sync.WaitGroup
		for _, w := range []struct {
			id       uuid.UUID
			patience time.Duration
			want     time.Duration
		}{
			{first, 5 * time.Second, time.Second}, {first, 5 * time.Second, time.Second}, // twice
			{first, 700 * time.Millisecond, 700 * time.Millisecond}, // whichever of them looks may leave
			{second, 5 * time.Second, 3 * time.Second},
			{uuid.New(), 2 * time.Second, 2 * time.Second},
		} {
			all.Go(func() {
				waited := s.wait(t.Context(), tenant, w.id, w.patience)
				if took := time.Since(began); !waited || took < w.want || took > w.want+2*lookEvery {
					t.Errorf("it took %v, want %v", took, w.want)
				}
			})
		}
		sleep(t.Context(), time.Second)
		if n := l.looks.Load(); n < 18 || n > 20 {
			t.Errorf("%d looks in a second", n)
		}
		l.settle(first)
		sleep(t.Context(), 2*time.Second)
		l.settle(second)
		all.Wait()
		if len(s.of) != 0 {
			t.Errorf("%v are left", s.of)
		}
	})
}

func TestTooManyWaitingReadsAreAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{err: errors.New("away")}
		s := settlements{look: l.look, of: map[uuid.UUID]*waiters{}}
		tenant, id := uuid.New(), uuid.New()
		var all sync.WaitGroup
		var waited atomic.Int64
		for range maxWaiters {
			all.Go(func() {
				if s.wait(t.Context(), tenant, id, 5*time.Second) {
					waited.Add(1)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		if s.wait(t.Context(), tenant, id, 5*time.Second) || time.Since(began) > 0 {
			t.Error("one more waits")
		}
		if !s.wait(t.Context(), uuid.New(), id, time.Second) {
			t.Error("another tenant's does not wait")
		}
		all.Wait()
		if waited.Load() != maxWaiters || time.Since(began) != 5*time.Second {
			t.Errorf("%d waited until %v", waited.Load(), time.Since(began))
		}
		if !s.wait(t.Context(), tenant, id, time.Second) {
			t.Error("the places are not given back")
		}
	})
}

package httpapi

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/groupcommit"
)

// flood takes n shares of the tenant at once, and returns those that were let through so far and
// those that were refused.
func flood(ctx context.Context, s *shares, tenant uuid.UUID, n int) (through, refused func() int) {
	results := make(chan error, n)
	for range n {
		go func() { results <- s.take(ctx, tenant) }()
	}
	synctest.Wait()
	var counted [2]int
	count := func(i int) func() int {
		return func() int {
			synctest.Wait()
			for len(results) > 0 {
				if err := <-results; err == nil {
					counted[0]++
				} else {
					counted[1]++
				}
			}
			return counted[i]
		}
	}
	return count(0), count(1)
}

func wantCounts(t *testing.T, through, refused func() int, want ...int) {
	t.Helper()
	if got := [2]int{through(), refused()}; got != [2]int{want[0], want[1]} {
		t.Errorf("%d admitted and %d refused, want %d and %d", got[0], got[1], want[0], want[1])
	}
}

func TestLoneTenantMayUseItsWholeShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(100, time.Now)
		through, refused := flood(t.Context(), s, uuid.New(), 150)
		wantCounts(t, through, refused, 100, 50)
	})
}

func TestContendingTenantIsAdmittedInWaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, flooder, other := newShares(100, time.Now), uuid.New(), uuid.New()
		if err := s.take(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		through, refused := flood(t.Context(), s, flooder, 150)
		wantCounts(t, through, refused, maxInFlight, 50)
		if err := s.take(t.Context(), other); err != nil { // without waiting
			t.Fatal(err)
		}
		for range maxInFlight - lowWater - 1 {
			s.giveBack(flooder)
		}
		wantCounts(t, through, refused, maxInFlight, 50)
		s.giveBack(flooder)
		wantCounts(t, through, refused, 2*maxInFlight-lowWater, 50) // the next wave

		<-time.After(contentionWindow + time.Nanosecond) // the other tenant is no longer active
		s.giveBack(flooder)
		wantCounts(t, through, refused, 100, 50)
		for range 100 - (maxInFlight - lowWater) - 1 {
			s.giveBack(flooder)
		}
		s.giveBack(other)
		s.giveBack(other)
		if len(s.of) > 0 {
			t.Errorf("%d tenants are kept", len(s.of))
		}
	})
}

func TestExpiredWaiterLeavesItsTurnToTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, flooder, other := newShares(100, time.Now), uuid.New(), uuid.New()
		for _, tenant := range []uuid.UUID{other, flooder} {
			if err := s.take(t.Context(), tenant); err != nil {
				t.Fatal(err)
			}
		}
		through, _ := flood(t.Context(), s, flooder, maxInFlight-1)
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.take(hurried, flooder); !errors.Is(err, groupcommit.ErrNotBegun) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		patient, refused := flood(t.Context(), s, flooder, 1)
		wantCounts(t, patient, refused, 0, 0)
		for range maxInFlight - lowWater {
			s.giveBack(flooder)
		}
		wantCounts(t, patient, refused, 1, 0)
		if n := through(); n != maxInFlight-1 {
			t.Errorf("%d before", n)
		}
	})
}

func TestRefusedRequestsLookOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns, flooder, began := newLookUps(), uuid.New(), time.Now()
		first := turns.take(t.Context(), flooder)
		second := make(chan func(), 1)
		go func() { second <- turns.take(t.Context(), flooder) }()
		synctest.Wait()
		if len(second) > 0 {
			t.Fatal("two look at once")
		}
		if other := turns.take(t.Context(), uuid.New()); other == nil || time.Since(began) > 0 {
			t.Error("another tenant has to wait")
		} else {
			other()
		}
		first()
		<-time.After(turns.pause - 1)
		synctest.Wait()
		if len(second) > 0 {
			t.Fatal("the next one looks without a pause")
		}
		<-time.After(1)
		synctest.Wait()
		if len(second) != 1 {
			t.Fatal("the next one gets no turn")
		}
		began = time.Now()
		if third := turns.take(t.Context(), flooder); third != nil || time.Since(began) != turns.patience {
			t.Errorf("a request without room waited %s", time.Since(began))
		}
		(<-second)()
		<-time.After(turns.pause)
		synctest.Wait()
		if len(turns.of) > 0 {
			t.Errorf("%d tenants are kept", len(turns.of))
		}
	})
}

// The turn comes at the moment the client leaves: its place goes to the next.
func TestShareIsReturnedWhenTurnComesTooLate(t *testing.T) {
	t.Parallel()
	s, flooder, other := newShares(100, time.Now), uuid.New(), uuid.New()
	for _, tenant := range append(slices.Repeat([]uuid.UUID{flooder}, maxInFlight-1), other, flooder) {
		if err := s.take(t.Context(), tenant); err != nil {
			t.Fatal(err)
		}
	}
	turn, err := s.enter(flooder)
	if turn == nil || err != nil {
		t.Fatalf("there is room for it: %v", err)
	}

	for range maxInFlight - lowWater {
		s.giveBack(flooder)
	}
	<-turn
	s.leave(flooder, turn)
	for range lowWater {
		s.giveBack(flooder)
	}
	s.giveBack(other)
	if len(s.of) > 0 {
		t.Errorf("%d tenants are kept", len(s.of))
	}
}

func TestReadsOfOneTenantLeaveHalfThePool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads, flooder, began := newReads(4), uuid.New(), time.Now()
		first, second := reads.take(t.Context(), flooder), reads.take(t.Context(), flooder)
		if first == nil || second == nil {
			t.Fatal("two do not read at the same time")
		}
		if third := reads.take(t.Context(), flooder); third != nil || time.Since(began) != reads.patience {
			t.Errorf("the third waited %s", time.Since(began))
		}
		if other := reads.take(t.Context(), uuid.New()); other == nil || time.Since(began) != reads.patience {
			t.Error("another tenant has to wait")
		} else {
			other()
		}

		first()
		if third := reads.take(t.Context(), flooder); third == nil || time.Since(began) != reads.patience {
			t.Error("the next one has to wait")
		} else {
			third()
		}
		second()
		if len(reads.of) > 0 {
			t.Errorf("%d tenants are kept", len(reads.of))
		}
	})
}

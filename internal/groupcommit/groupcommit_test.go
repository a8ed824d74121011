package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/groupcommit"
)

// store is what items are committed to. A commit takes 1 ms and doubles its items.
type store struct {
	fail func(items []int) error // asked before anything is committed; it may panic; nil: nothing fails

	mu      sync.Mutex
	calls   [][]int // the items of each call of commit
	running int
	peak    int // the most calls at the same time
	done    []int
}

const took = time.Millisecond

func (s *store) commit(ctx context.Context, items []int) ([]int, error) {
	s.mu.Lock()
	s.calls = append(s.calls, items)
	s.running++
	s.peak = max(s.peak, s.running)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.fail != nil {
		if err := s.fail(items); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, items...)
	doubled := make([]int, len(items))
	for i, n := range items {
		doubled[i] = 2 * n
	}
	return doubled, nil
}

// called fails the test if commit was not called with just these batches.
func (s *store) called(t *testing.T, want ...[]int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.calls); diff != "" {
		t.Errorf("batches: %s", diff)
	}
}

// answers are what callers got, by item.
type answers struct {
	sync.WaitGroup
	mu      sync.Mutex
	results map[int]int
	errs    map[int]error
}

// send calls Do for each item, in this order, and returns when all are in the queue or on their
// way.
func send(ctx context.Context, g *groupcommit.Group[int, int], items ...int) *answers {
	a := &answers{results: map[int]int{}, errs: map[int]error{}}
	for _, n := range items {
		a.Go(func() {
			result, err := g.Do(ctx, n)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.results[n], a.errs[n] = result, err
		})
		synctest.Wait()
	}
	return a
}

func (a *answers) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.errs)
}

// want waits for the answers and fails the test if an item has another error, or no error and a
// wrong result.
func (a *answers) want(t *testing.T, want error, items ...int) {
	t.Helper()
	a.Wait()
	for _, n := range items {
		err, answered := a.errs[n]
		if !answered || !errors.Is(err, want) || err == nil && a.results[n] != 2*n || err != nil && a.results[n] != 0 {
			t.Errorf("item %d: answered %v with %d and %v, want %v", n, answered, a.results[n], err, want)
		}
	}
}

// run runs g until stop is called, which waits for it.
func run[T, R any](t *testing.T, g *groupcommit.Group[T, R]) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// promise runs a test in a synctest bubble: its clock stands still while goroutines work, and a
// goroutine that is left running fails it.
func promise(t *testing.T, s *store, o groupcommit.Options, test func(t *testing.T, g *groupcommit.Group[int, int])) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := groupcommit.New(s.commit, o)
		stop := run(t, g)
		test(t, g)
		stop()
	})
}

var (
	errBad  = errors.New("one of them is bad")
	errAway = errors.New("the database is away")
)

func isBad(err error) bool { return errors.Is(err, errBad) }

func TestLoneItemIsNotDelayed(t *testing.T) {
	promise(t, &store{}, groupcommit.Options{}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		for n := range 10 {
			began := time.Now()
			got, err := g.Do(t.Context(), n)
			if err != nil || got != 2*n || time.Since(began) != took {
				t.Errorf("%d after %s: %v", got, time.Since(began), err)
			}
		}
	})
}

func TestWaitingItemsAreTheNextBatch(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{Committers: 1, MaxBatch: 5}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		began := time.Now()
		send(t.Context(), g, 0, 1, 2, 3, 4, 5, 6, 7, 8).want(t, nil, 0, 1, 2, 3, 4, 5, 6, 7, 8)
		s.called(t, []int{0}, []int{1, 2, 3, 4, 5}, []int{6, 7, 8})
		if time.Since(began) != 3*took {
			t.Errorf("three batches took %s", time.Since(began))
		}
	})
}

func TestFreeCommitterTakesItem(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{Committers: 3}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		send(t.Context(), g, 0, 1, 2, 3, 4).want(t, nil, 0, 1, 2, 3, 4)
		s.called(t, []int{0}, []int{1}, []int{2}, []int{3, 4})
		if s.peak != 3 {
			t.Errorf("%d batches at the same time", s.peak)
		}
	})
}

func TestOptionDefaults(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		var all []int
		for n := range 2 + 1000 + 1 {
			all = append(all, n)
		}
		a := send(t.Context(), g, all...)
		a.want(t, nil, all[:1002]...)
		a.want(t, groupcommit.ErrOverloaded, 1002)
		if s.peak != 2 || len(s.calls[2]) != 100 || len(s.calls) != 2+10 {
			t.Errorf("%d batches at the same time, of %d items", s.peak, len(s.calls[2]))
		}
	})
}

func TestFullQueueRefuses(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{Committers: 1, Queue: 2}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		a := send(t.Context(), g, 0, 1, 2)
		if g.Waiting() != 2 {
			t.Errorf("%d are waiting", g.Waiting())
		}
		began := time.Now()
		if _, err := g.Do(t.Context(), 3); !errors.Is(err, groupcommit.ErrOverloaded) || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		a.want(t, nil, 0, 1, 2)
		send(t.Context(), g, 4).want(t, nil, 4) // there is room again
		s.called(t, []int{0}, []int{1, 2}, []int{4})
	})
}

func TestCallerGoneWhileWaiting(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{Committers: 1}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		busy := send(t.Context(), g, 0)
		why := errors.New("the client left")
		ctx, giveUp := context.WithCancelCause(t.Context())
		first, stay, last := send(ctx, g, 1), send(t.Context(), g, 2), send(ctx, g, 3)
		began := time.Now()
		giveUp(why)
		first.want(t, groupcommit.ErrNotBegun, 1)
		last.want(t, groupcommit.ErrNotBegun, 3)
		if time.Since(began) != 0 || !errors.Is(first.errs[1], why) {
			t.Errorf("after %s: %v", time.Since(began), first.errs[1])
		}
		busy.want(t, nil, 0)
		stay.want(t, nil, 2)
		s.called(t, []int{0}, []int{2})
	})
}

func TestAbandonedBatchIsNotCommitted(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{Committers: 1}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		busy := send(t.Context(), g, 0)
		ctx, giveUp := context.WithCancel(t.Context())
		gone := send(ctx, g, 1, 2)
		giveUp()
		gone.want(t, groupcommit.ErrNotBegun, 1, 2)
		busy.want(t, nil, 0)
		send(t.Context(), g, 3).want(t, nil, 3)
		s.called(t, []int{0}, []int{3})
	})
}

func TestCallerGoneDuringCommit(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{Committers: 1}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		busy := send(t.Context(), g, 0)
		ctx, cancel := context.WithTimeout(t.Context(), took+took/2)
		defer cancel()
		leaves, stays := send(ctx, g, 1), send(t.Context(), g, 2)
		leaves.want(t, groupcommit.ErrUnfinished, 1)
		leaves.want(t, context.DeadlineExceeded, 1)
		busy.want(t, nil, 0)
		stays.want(t, nil, 2)
		if !slices.Equal(s.done, []int{0, 1, 2}) {
			t.Errorf("committed: %v", s.done)
		}
	})
}

func TestCallerGoneBeforeDo(t *testing.T) {
	s := &store{}
	promise(t, s, groupcommit.Options{Committers: 1, Queue: 1}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		busy := send(t.Context(), g, 0)
		ctx, giveUp := context.WithCancel(t.Context())
		giveUp()
		send(ctx, g, 1).want(t, groupcommit.ErrNotBegun, 1)
		send(t.Context(), g, 2).want(t, nil, 2)
		busy.want(t, nil, 0)
		s.called(t, []int{0}, []int{2})
	})
}

func TestPanicStaysWithItem(t *testing.T) {
	s := &store{fail: func(items []int) error {
		if slices.Contains(items, 2) {
			panic(fmt.Sprintf("over one of %d", len(items)))
		}
		return nil
	}}
	promise(t, s, groupcommit.Options{Committers: 1}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		a := send(t.Context(), g, 0, 1, 2, 3)
		a.want(t, nil, 0, 1, 3)
		var panicked *groupcommit.PanicError
		if !errors.As(a.errs[2], &panicked) || panicked.Value != "over one of 1" || !strings.Contains(string(panicked.Stack), "TestPanicStaysWithItem") {
			t.Errorf("%v", a.errs[2])
		}
		s.called(t, []int{0}, []int{1, 2, 3}, []int{1}, []int{2}, []int{3})
		send(t.Context(), g, 4).want(t, nil, 4) // the committer survived
	})
}

func TestBadItemSplitsBatch(t *testing.T) {
	s := &store{fail: func(items []int) error {
		if slices.Contains(items, 2) {
			return fmt.Errorf("commit: %w", errBad)
		}
		return nil
	}}
	promise(t, s, groupcommit.Options{Committers: 1, Split: isBad}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		a := send(t.Context(), g, 0, 1, 2, 3)
		a.want(t, nil, 0, 1, 3)
		a.want(t, errBad, 2)
		send(t.Context(), g, 2).want(t, errBad, 2) // a batch of one is not run again
		s.called(t, []int{0}, []int{1, 2, 3}, []int{1}, []int{2}, []int{3}, []int{2})
	})
}

func TestOutageDoesNotSplitBatch(t *testing.T) {
	for name, o := range map[string]groupcommit.Options{
		"another reason":     {Committers: 1, Split: isBad},
		"no reason to split": {Committers: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{fail: func(items []int) error {
				if len(items) > 1 {
					return errAway
				}
				return nil
			}}
			promise(t, s, o, func(t *testing.T, g *groupcommit.Group[int, int]) {
				a := send(t.Context(), g, 0, 1, 2, 3)
				a.want(t, nil, 0)
				a.want(t, errAway, 1, 2, 3)
				s.called(t, []int{0}, []int{1, 2, 3})
			})
		})
	}
}

func TestOutageEndsSplitBatch(t *testing.T) {
	s := &store{fail: func(items []int) error {
		switch {
		case len(items) > 1:
			return errBad
		case items[0] == 2:
			return errAway
		}
		return nil
	}}
	promise(t, s, groupcommit.Options{Committers: 1, Split: isBad}, func(t *testing.T, g *groupcommit.Group[int, int]) {
		a := send(t.Context(), g, 0, 1, 2, 3, 4)
		a.want(t, nil, 0, 1)
		a.want(t, errAway, 2, 3, 4)
		s.called(t, []int{0}, []int{1, 2, 3, 4}, []int{1}, []int{2})
	})
}

func TestMissingResultFailsBatch(t *testing.T) {
	t.Parallel()
	for name, results := range map[string][]int{"too few": {}, "none": nil, "too many": {1, 2}} {
		synctest.Test(t, func(t *testing.T) {
			g := groupcommit.New(func(context.Context, []int) ([]int, error) { return results, nil }, groupcommit.Options{})
			defer run(t, g)()
			if _, err := g.Do(t.Context(), 1); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d results for 1 items", len(results))) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

func TestRunAnswersWhatItAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New(s.commit, groupcommit.Options{Committers: 2, MaxBatch: 2})
		stop := run(t, g)
		a := send(t.Context(), g, 0, 1, 2, 3, 4, 5, 6)
		stop()
		if !slices.Equal(slices.Sorted(slices.Values(s.done)), []int{0, 1, 2, 3, 4, 5, 6}) {
			t.Errorf("committed when Run returned: %v", s.done)
		}
		synctest.Wait()
		if n := a.count(); n != 7 {
			t.Errorf("%d were answered", n)
		}
		a.want(t, nil, 0, 1, 2, 3, 4, 5, 6)
		send(t.Context(), g, 7).want(t, groupcommit.ErrStopped, 7)
	})
}

func TestDrainAcceptsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New(s.commit, groupcommit.Options{Committers: 1})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- g.Run(ctx) }()
		a := send(t.Context(), g, 0, 1)
		cancel()
		synctest.Wait()
		send(t.Context(), g, 2).want(t, groupcommit.ErrStopped, 2)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		a.want(t, nil, 0, 1)
	})
}

func TestItemsWaitForRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		g := groupcommit.New(s.commit, groupcommit.Options{Committers: 1})
		a := send(t.Context(), g, 1, 2, 3)
		if a.count() != 0 || g.Waiting() != 3 {
			t.Errorf("%d were answered, %d are waiting", a.count(), g.Waiting())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // even one that ends at once answers what was accepted
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
		a.want(t, nil, 1, 2, 3)
		s.called(t, []int{1, 2, 3})
	})
}

func TestHangingCommitTimesOut(t *testing.T) {
	t.Parallel()
	for given, want := range map[time.Duration]time.Duration{0: 8 * time.Second, time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			g := groupcommit.New(func(ctx context.Context, _ []int) ([]int, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}, groupcommit.Options{Timeout: given})
			defer run(t, g)()
			began := time.Now()
			send(t.Context(), g, 1).want(t, context.DeadlineExceeded, 1)
			if time.Since(began) != want {
				t.Errorf("Timeout %s: %s", given, time.Since(began))
			}
		})
	}
}

func TestOnBatchSeesEveryCommit(t *testing.T) {
	s := &store{fail: func(items []int) error {
		if slices.Contains(items, 2) {
			return errBad
		}
		return nil
	}}
	var told []groupcommit.Batch
	o := groupcommit.Options{Committers: 1, Split: isBad, OnBatch: func(b groupcommit.Batch) { told = append(told, b) }}
	promise(t, s, o, func(t *testing.T, g *groupcommit.Group[int, int]) {
		send(t.Context(), g, 0, 1, 2).want(t, nil, 0, 1)
		want := []groupcommit.Batch{
			{Size: 1, Took: took},
			{Size: 2, Waited: took, Took: took, Err: errBad},
			{Size: 1, Again: true, Waited: 2 * took, Took: took},
			{Size: 1, Again: true, Waited: 3 * took, Took: took, Err: errBad},
		}
		if diff := cmp.Diff(want, told, cmp.Comparer(func(x, y error) bool { return errors.Is(x, y) })); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOptionOutOfRangePanics(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]groupcommit.Options{
		"groupcommit: Committers is -1, must be up to 1000, or zero for 2":                   {Committers: -1},
		"groupcommit: Committers is 1001, must be up to 1000, or zero for 2":                 {Committers: 1001},
		"groupcommit: MaxBatch is -100, must be up to 10000, or zero for 100":                {MaxBatch: -100},
		"groupcommit: MaxBatch is 1099511627776, must be up to 10000, or zero for 100":       {MaxBatch: 1 << 40},
		"groupcommit: Queue is -1, must be up to 1000000, or zero for 1000":                  {Queue: -1},
		"groupcommit: Queue is 4611686018427387904, must be up to 1000000, or zero for 1000": {Queue: 1 << 62},
		"groupcommit: Timeout is -1ns, must be up to 1h0m0s, or zero for 8s":                 {Timeout: -1},
		"groupcommit: Timeout is 1h0m0.000000001s, must be up to 1h0m0s, or zero for 8s":     {Timeout: time.Hour + 1},
	} {
		if got := panicOf(func() { groupcommit.New((&store{}).commit, o) }); got != want {
			t.Errorf("%+v: %v", o, got)
		}
	}
	if got := panicOf(func() { groupcommit.New[int, int](nil, groupcommit.Options{}) }); got != "groupcommit: commit is nil" {
		t.Error(got)
	}
	groupcommit.New((&store{}).commit, groupcommit.Options{Committers: 1000, MaxBatch: 10_000, Queue: 1_000_000, Timeout: time.Hour})
}

func panicOf(do func()) (cause any) {
	defer func() { cause = recover() }()
	do()
	return nil
}

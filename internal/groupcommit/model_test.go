package groupcommit_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncepay/oncepay/internal/groupcommit"
)

// TestRandomOperationsAnswerEachItemOnce is the law, on random histories: callers come, give up,
// the queue overflows, batches fail for one member, for all, for unknown reasons, and panic, and
// the group stops in the middle of it.
func TestRandomOperationsAnswerEachItemOnce(t *testing.T) {
	t.Parallel()
	met := map[string]int{}
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) { history(t, seed, met) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, name := range []string{"nil", "overloaded", "stopped", "not begun", "unfinished", "bad", "panic", "away", "unknown"} {
		if met[name] == 0 {
			t.Errorf("no item was answered %q: the test says little", name)
		}
	}
	t.Logf("answers: %v", met)
}

const itemsOfHistory = 200

// history is one of them.
func history(t *testing.T, seed uint64, met map[string]int) {
	w := &world{
		T: t, random: rand.New(rand.NewPCG(seed, 1)), since: time.Now(),
		came: map[int]arrival{}, begun: map[int]time.Time{}, tried: map[int]int{}, receipts: map[int][]receipt{},
	}
	o := groupcommit.Options{
		Committers: 1 + w.random.IntN(4), MaxBatch: 1 + w.random.IntN(10), Queue: 1 + w.random.IntN(30), Split: isBad,
	}
	w.committers, w.most = o.Committers, o.MaxBatch
	g := groupcommit.New(w.commit, o)
	stop := run(t, g)
	var callers sync.WaitGroup
	errs := make([]error, itemsOfHistory)
	for n := range errs {
		callers.Go(func() {
			<-time.After(w.span(50))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if w.chance(20) {
				ctx, cancel = context.WithTimeout(ctx, w.span(10))
				defer cancel()
			}
			w.arrive(n)
			var got receipt
			got, errs[n] = g.Do(ctx, n)
			w.answered(n, got, errs[n])
		})
	}
	<-time.After(w.span(80))
	stop()
	if _, err := g.Do(t.Context(), -1); !errors.Is(err, groupcommit.ErrStopped) {
		t.Errorf("after the end: %v", err)
	}
	callers.Wait()
	for n, err := range errs {
		met[w.judge(n, err)]++
	}
}

// world is where items are committed, and what is known of each of them.
type world struct {
	*testing.T
	committers, most int

	mu       sync.Mutex
	random   *rand.Rand
	came     map[int]arrival
	begun    map[int]time.Time // when commit was first called with it
	tried    map[int]int       // how often it was
	receipts map[int][]receipt // one for each time it took effect

	running int
	idle    time.Duration // for how long a committer was free, up to since
	since   time.Time
}

type arrival struct {
	at   time.Time
	idle time.Duration
}

// receipt is the result of an item.
type receipt struct {
	item int
	at   time.Time
}

var errUnknown = errors.New("the outcome is unknown")

func isBadItem(n int) bool   { return n%17 == 3 }
func isPanicItem(n int) bool { return n%23 == 5 }

func (w *world) commit(_ context.Context, items []int) ([]receipt, error) {
	w.begin(items)
	<-time.After(w.span(5))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick()
	w.running--
	for _, n := range items {
		switch {
		case isBadItem(n):
			return nil, errBad
		case isPanicItem(n):
			panic("over this item")
		}
	}
	if w.random.IntN(100) < 5 {
		return nil, errAway
	}
	results := make([]receipt, len(items))
	for i, n := range items {
		results[i] = receipt{n, time.Now()}
		w.receipts[n] = append(w.receipts[n], results[i])
	}
	if w.random.IntN(100) < 5 {
		return nil, errUnknown
	}
	return results, nil
}

// begin checks what may be begun, and when.
func (w *world) begin(items []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick()
	if w.running++; w.running > w.committers {
		w.Errorf("%d batches at the same time, want %d", w.running, w.committers)
	}
	if len(items) == 0 || len(items) > w.most {
		w.Errorf("a batch of %d, want up to %d", len(items), w.most)
	}
	if !slices.IsSortedFunc(items, func(x, y int) int { return w.came[x].at.Compare(w.came[y].at) }) {
		w.Errorf("batch %v is not in the order of arrival", items)
	}
	for _, n := range items {
		if w.tried[n]++; w.tried[n] > 1 {
			if w.tried[n] > 2 || len(items) > 1 {
				w.Errorf("item %d was tried %d times, now in a batch of %d", n, w.tried[n], len(items))
			}
			continue
		}
		came := w.came[n]
		if w.idle != came.idle {
			w.Errorf("item %d waited while a committer was free for %s", n, w.idle-came.idle)
		}
		for other, at := range w.begun {
			if at.Before(time.Now()) && w.came[other].at.After(came.at) {
				w.Errorf("item %d was begun after %d, which came later", n, other)
			}
		}
		w.begun[n] = time.Now()
	}
}

func (w *world) arrive(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick()
	w.came[n] = arrival{time.Now(), w.idle}
}

// answered checks an answer at the moment when it is given: a result comes after its commit, and at
// once.
func (w *world) answered(n int, got receipt, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && !slices.Equal(w.receipts[n], []receipt{got}):
		w.Errorf("item %d was answered %v and committed %v", n, got, w.receipts[n])
	case err == nil && !got.at.Equal(time.Now()):
		w.Errorf("item %d was answered %s after its commit", n, time.Since(got.at))
	case err != nil && got != receipt{}:
		w.Errorf("item %d has a result and an error", n)
	case errors.Is(err, groupcommit.ErrOverloaded) || errors.Is(err, groupcommit.ErrStopped):
		if at := w.came[n].at; !at.Equal(time.Now()) {
			w.Errorf("item %d was refused after %s", n, time.Since(at))
		}
	}
}

// judge compares an answer with what had become of the item at the end of all things, and names it.
func (w *world) judge(n int, err error) string {
	var panicked *groupcommit.PanicError
	did, may := len(w.receipts[n]), 0
	name := "another"
	switch {
	case err == nil:
		name, may = "nil", 1
	case errors.Is(err, groupcommit.ErrUnfinished):
		name, may = "unfinished", 1
	case errors.Is(err, errUnknown):
		name, may = "unknown", 1
	case errors.Is(err, groupcommit.ErrOverloaded):
		name = "overloaded"
	case errors.Is(err, groupcommit.ErrStopped):
		name = "stopped"
	case errors.Is(err, groupcommit.ErrNotBegun):
		name = "not begun"
	case errors.Is(err, errAway):
		name = "away"
	case errors.Is(err, errBad) && isBadItem(n):
		name = "bad"
	case errors.As(err, &panicked) && isPanicItem(n):
		name = "panic"
	}
	if name == "another" || did > may {
		w.Errorf("item %d was committed %d times and answered %v", n, did, err)
	}
	begun := w.tried[n] > 0
	if never := name == "overloaded" || name == "stopped" || name == "not begun"; begun == never {
		w.Errorf("item %d was tried %d times and answered %v", n, w.tried[n], err)
	}
	return name
}

// tick counts the time in which a committer was free.
func (w *world) tick() {
	if w.running < w.committers {
		w.idle += time.Since(w.since)
	}
	w.since = time.Now()
}

func (w *world) chance(percent int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(100) < percent
}

// span is up to so many milliseconds, in steps that make many things happen at the same time.
func (w *world) span(most int) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.random.IntN(10*most)) * time.Millisecond / 10
}

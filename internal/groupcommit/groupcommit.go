// Package groupcommit commits together what arrives together.
//
// An item waits only while all committers are busy; what has piled up by then is the next batch. There is no timer: a lone item
// is committed at once, and the batches grow by themselves with the load, because a committer that comes back finds more.
//
// # Promise
//
//   - Every item that was accepted is answered once: by its result, after its batch was committed, or by an error that says
//     whether anything was done. Shutting down answers what was accepted.
//   - First in, first out. Items of one batch keep their order.
//   - A caller that gives up cancels nothing but its own waiting. If its turn had not come, its item is not committed.
//   - No item fails for another: a batch that failed for the reason of one of its members (Split), or panicked, is committed
//     again one by one. If what fails then is no member's fault, the rest of the batch fails with it and is not tried.
//   - The queue is bounded. What does not fit is refused at once, and nothing of it was done.
//
// # No promise
//
// It knows nothing of what it commits: that a batch is one transaction, that nothing is told before COMMIT, and what is tried
// again, is for the commit function. Committing one by one must be safe after a batch that failed: an error of commit must
// mean that nothing was done, or that doing it again finds out.
package groupcommit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Group collects items of type T and commits them together, each for a result of type R.
type Group[T, R any] struct {
	commit func(context.Context, []T) ([]R, error)
	o      Options
	queue  chan *call[T, R]

	door   sync.RWMutex // held for writing while the queue is closed, for reading while something is put into it
	closed bool
}

// Options of a Group. The zero value is good; a number out of its range is a programming error.
type Options struct {
	Committers int              // batches that are committed at the same time, up to 1,000; zero: 2
	Most       int              // items of a batch, up to 10,000; zero: 100
	Queue      int              // items that may wait, up to 1,000,000; zero: 1,000
	Timeout    time.Duration    // of the context that commit gets, up to an hour; zero: 8 s
	Split      func(error) bool // whether a batch failed for the reason of one of its members; nil: no batch does
	OnBatch    func(Batch)      // told of every call of commit; nil is fine
}

// Batch is one call of commit.
type Batch struct {
	Size   int
	Again  bool          // an item of a batch that failed, committed alone
	Waited time.Duration // of its first item, until now
	Took   time.Duration
	Err    error
}

var (
	// ErrOverloaded says that the queue is full. Nothing was done.
	ErrOverloaded = errors.New("too many are waiting")
	// ErrStopped says that the group is shutting down. Nothing was done.
	ErrStopped = errors.New("shutting down")
	// ErrNotBegun says that the caller's context ended while its item was waiting. Nothing was done.
	ErrNotBegun = errors.New("gave up waiting")
	// ErrUnfinished says that the caller's context ended while its item was being committed: it may take effect or not.
	ErrUnfinished = errors.New("gave up while it was being committed")
)

// PanicError is what an item gets over which commit panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// call is an item on its way.
type call[T, R any] struct {
	item  T
	since time.Time
	state atomic.Int32 // waiting, then begun or left

	result R
	err    error
	done   chan struct{} // closed when result and err are there
}

const (
	waiting int32 = iota
	begun
	left
)

// New returns a group that commits with commit: one result for each item, in order, or an error for all of them. Items are
// accepted from now on, and committed while Run runs.
func New[T, R any](commit func(context.Context, []T) ([]R, error), o Options) *Group[T, R] {
	if commit == nil {
		panic("groupcommit: commit is nil")
	}
	o.Committers = within("Committers", o.Committers, 1000, 2)
	o.Most = within("Most", o.Most, 10_000, 100)
	o.Queue = within("Queue", o.Queue, 1_000_000, 1000)
	o.Timeout = within("Timeout", o.Timeout, time.Hour, 8*time.Second)
	if o.Split == nil {
		o.Split = func(error) bool { return false }
	}
	if o.OnBatch == nil {
		o.OnBatch = func(Batch) {}
	}
	return &Group[T, R]{commit: commit, o: o, queue: make(chan *call[T, R], o.Queue)}
}

func within[N int | time.Duration](name string, n, most, standard N) N {
	if n < 0 || n > most {
		panic(fmt.Sprintf("groupcommit: %s is %v, must be up to %v, or zero for %v", name, n, most, standard))
	}
	return cmp.Or(n, standard)
}

// Waiting is how many items are in the queue.
func (g *Group[T, R]) Waiting() int { return len(g.queue) }

// Do has t committed and returns its result. With ErrUnfinished it may take effect or not; with any other error of this package
// nothing was done; an error of commit means what commit says.
func (g *Group[T, R]) Do(ctx context.Context, t T) (R, error) {
	c := &call[T, R]{item: t, since: time.Now(), done: make(chan struct{})}
	var none R
	if ctx.Err() != nil {
		return none, fmt.Errorf("%w: %w", ErrNotBegun, context.Cause(ctx))
	}
	if err := g.accept(c); err != nil {
		return none, err
	}
	select {
	case <-c.done:
		return c.result, c.err
	case <-ctx.Done():
	}
	if c.state.CompareAndSwap(waiting, left) {
		return none, fmt.Errorf("%w: %w", ErrNotBegun, context.Cause(ctx))
	}
	select {
	case <-c.done: // both at once: the result is worth more
		return c.result, c.err
	default:
		return none, fmt.Errorf("%w: %w", ErrUnfinished, context.Cause(ctx))
	}
}

func (g *Group[T, R]) accept(c *call[T, R]) error {
	g.door.RLock()
	defer g.door.RUnlock()
	if g.closed {
		return ErrStopped
	}
	select {
	case g.queue <- c:
		return nil
	default:
		return ErrOverloaded
	}
}

// Run commits until ctx ends and everything that was accepted is answered. It is called once.
func (g *Group[T, R]) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, g.close)()
	var committers sync.WaitGroup
	for range g.o.Committers {
		committers.Go(func() { g.work(context.WithoutCancel(ctx)) })
	}
	committers.Wait()
	return nil
}

func (g *Group[T, R]) close() {
	g.door.Lock()
	defer g.door.Unlock()
	g.closed = true
	close(g.queue)
}

// work commits batch after batch, until the queue is closed and empty.
func (g *Group[T, R]) work(ctx context.Context) {
	batch := make([]*call[T, R], 0, g.o.Most)
	for first := range g.queue {
		batch = g.fill(append(batch[:0], first))
		if len(batch) > 0 {
			g.settle(ctx, batch)
		}
	}
}

// fill adds what is waiting to a batch of one, and leaves out those whose callers are gone.
func (g *Group[T, R]) fill(batch []*call[T, R]) []*call[T, R] {
	if !batch[0].state.CompareAndSwap(waiting, begun) {
		batch = batch[:0]
	}
	for len(batch) < g.o.Most {
		select {
		case c, open := <-g.queue:
			if !open {
				return batch
			}
			if c.state.CompareAndSwap(waiting, begun) {
				batch = append(batch, c)
			}
		default:
			return batch
		}
	}
	return batch
}

// settle commits a batch and answers every call of it.
func (g *Group[T, R]) settle(ctx context.Context, batch []*call[T, R]) {
	results, err := g.attempt(ctx, batch, false)
	if len(batch) == 1 || !g.oneIsToBlame(err) {
		answer(batch, results, err)
		return
	}
	for i := range batch {
		results, err := g.attempt(ctx, batch[i:i+1], true)
		if err != nil && !g.oneIsToBlame(err) {
			answer(batch[i:], nil, err) // the others would fail as well, and a database in trouble has enough to do
			return
		}
		answer(batch[i:i+1], results, err)
	}
}

func (g *Group[T, R]) oneIsToBlame(err error) bool {
	var panicked *PanicError
	return err != nil && (errors.As(err, &panicked) || g.o.Split(err))
}

func answer[T, R any](batch []*call[T, R], results []R, err error) {
	for i, c := range batch {
		if c.err = err; err == nil {
			c.result = results[i]
		}
		close(c.done)
	}
}

// attempt calls commit.
func (g *Group[T, R]) attempt(ctx context.Context, batch []*call[T, R], again bool) (results []R, err error) {
	items, began := make([]T, len(batch)), time.Now()
	for i, c := range batch {
		items[i] = c.item
	}
	ctx, cancel := context.WithTimeout(ctx, g.o.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
		g.o.OnBatch(Batch{Size: len(batch), Again: again, Waited: began.Sub(batch[0].since), Took: time.Since(began), Err: err})
	}()
	results, err = g.commit(ctx, items)
	if err == nil && len(results) != len(items) {
		err = fmt.Errorf("commit returned %d results for %d items", len(results), len(items))
	}
	return results, err
}

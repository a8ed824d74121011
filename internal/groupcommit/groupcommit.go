package groupcommit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Group collects items of type T and commits them together, each for a result of type R.
type Group[T, R any] struct {
	commit func(context.Context, []T) ([]R, error)
	o      Options
	queue  chan *call[T, R]

	closing sync.RWMutex // write-locked to close the queue, read-locked to put an item into it
	closed  bool
}

// Options of a Group. The zero value is good; a number out of its range is a programming error.
type Options struct {
	Committers int              // concurrent batches, up to 1,000; zero: 2
	MaxBatch   int              // items of a batch, up to 10,000; zero: 100
	Queue      int              // items that may wait, up to 1,000,000; zero: 1,000
	Timeout    time.Duration    // of the context that commit gets, up to an hour; zero: 8 s
	Split      func(error) bool // whether a batch failed because of one of its items; nil: never
	OnBatch    func(Batch)      // called after every call of commit; may be nil
}

// Batch is one call of commit.
type Batch struct {
	Size   int
	Again  bool          // an item of a batch that failed, committed alone
	Waited time.Duration // by its first item, until commit was called
	Took   time.Duration
	Err    error
}

var (
	// ErrOverloaded means that the queue is full. Nothing was done.
	ErrOverloaded = errors.New("too many requests are waiting")
	// ErrStopped means that the group is shutting down. Nothing was done.
	ErrStopped = errors.New("shutting down")
	// ErrNotBegun means that the caller's context ended while its item was waiting. Nothing was
	// done.
	ErrNotBegun = errors.New("gave up waiting")
	// ErrUnfinished means that the caller's context ended while its item was being committed. The
	// item may or may not take effect.
	ErrUnfinished = errors.New("gave up while it was being committed")
)

// call is an item on its way.
type call[T, R any] struct {
	item  T
	since time.Time
	state atomic.Int32 // waiting, then begun or abandoned

	result R
	err    error
	done   chan struct{} // closed once result and err are set
}

const (
	waiting int32 = iota
	begun
	abandoned
)

// New returns a group that commits with commit, which returns one result for each item, in order,
// or an error for all of them. The group accepts items from now on, and commits them while Run
// runs.
func New[T, R any](commit func(context.Context, []T) ([]R, error), o Options) *Group[T, R] {
	if commit == nil {
		panic("groupcommit: commit is nil")
	}

	o.Committers = within("Committers", o.Committers, 1000, 2)
	o.MaxBatch = within("MaxBatch", o.MaxBatch, 10_000, 100)
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

// within returns n, or fallback if n is zero. It panics if n is out of range.
func within[N int | time.Duration](name string, n, limit, fallback N) N {
	if n < 0 || n > limit {
		const format = "groupcommit: %s is %v, must be up to %v, or zero for %v"
		panic(fmt.Sprintf(format, name, n, limit, fallback))
	}
	return cmp.Or(n, fallback)
}

// Waiting returns the number of items in the queue.
func (g *Group[T, R]) Waiting() int { return len(g.queue) }

// Do has t committed and returns its result. With ErrUnfinished it may or may not take effect. With
// any other error of this package nothing was done. An error of commit means what commit says.
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

	// The caller gives up. Whether its item was taken into a batch decides what it may be told.
	if c.state.CompareAndSwap(waiting, abandoned) {
		return none, fmt.Errorf("%w: %w", ErrNotBegun, context.Cause(ctx))
	}
	select {
	case <-c.done: // finished at the same moment: the result is worth more
		return c.result, c.err
	default:
		return none, fmt.Errorf("%w: %w", ErrUnfinished, context.Cause(ctx))
	}
}

func (g *Group[T, R]) accept(c *call[T, R]) error {
	g.closing.RLock()
	defer g.closing.RUnlock()

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

// Run commits until ctx ends and everything that was accepted is answered. Call it once.
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
	g.closing.Lock()
	defer g.closing.Unlock()

	g.closed = true
	close(g.queue)
}

package groupcommit

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// PanicError is what an item gets when commit panicked over it.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// work commits batch after batch, until the queue is closed and empty.
func (g *Group[T, R]) work(ctx context.Context) {
	batch := make([]*call[T, R], 0, g.o.MaxBatch)

	for first := range g.queue {
		batch = g.fill(append(batch[:0], first))
		if len(batch) > 0 {
			g.commitBatch(ctx, batch)
		}
	}
}

// fill adds what is waiting to a batch of one, and leaves out items whose callers have given up.
func (g *Group[T, R]) fill(batch []*call[T, R]) []*call[T, R] {
	if !batch[0].state.CompareAndSwap(waiting, begun) {
		batch = batch[:0]
	}

	// Not waiting for more: what arrives from now on is the next batch.
	for len(batch) < g.o.MaxBatch {
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

// commitBatch commits a batch and answers every call of it.
func (g *Group[T, R]) commitBatch(ctx context.Context, batch []*call[T, R]) {
	results, err := g.attempt(ctx, batch, false)
	if len(batch) == 1 || !g.oneIsToBlame(err) {
		answer(batch, results, err)
		return
	}

	// One by one, so that only the bad item fails. If the cause is another one by now, the rest
	// would fail as well, and a database in trouble must not get a hundred times the load.
	for i := range batch {
		results, err := g.attempt(ctx, batch[i:i+1], true)
		if err != nil && !g.oneIsToBlame(err) {
			answer(batch[i:], nil, err)
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

// attempt calls commit once.
func (g *Group[T, R]) attempt(
	ctx context.Context, batch []*call[T, R], again bool,
) (results []R, err error) {
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
		waited, took := began.Sub(batch[0].since), time.Since(began)
		g.o.OnBatch(Batch{Size: len(batch), Again: again, Waited: waited, Took: took, Err: err})
	}()

	results, err = g.commit(ctx, items)
	if err == nil && len(results) != len(items) {
		err = fmt.Errorf("commit returned %d results for %d items", len(results), len(items))
	}
	return results, err
}

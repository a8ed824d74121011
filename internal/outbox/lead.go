package outbox

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"
)

// errReleased ends a term because an operator has released dead letters: the next one begins with them.
var errReleased = errors.New("dead letters were released")

// errSlow ends a term when the broker answers, but does not acknowledge: too few replicas, no leader of a partition.
var errSlow = fmt.Errorf("the broker did not acknowledge within %s", publishTimeout)

// leader is a relay in one term. Three things happen side by side, each in order: batch n+1 is read, batch n is with the broker,
// and the cursor moves behind batch n-1, which is acknowledged. No transaction is open meanwhile.
type leader struct {
	*Relay
	term      *term
	publisher Publisher
	parked    map[aggregate]int64 // from which id on
	skipped   map[int64]bool      // events behind the cursor's position that an operator has given up
	suspicion *suspicion
	moving    chan error  // the move that is under way; nil: none is
	moved     bool        // whether the cursor ever moved
	away      atomic.Bool // a long read is under way
}

// lead moves batches until ctx ends (nil) or the term does.
func (l *leader) lead(ctx context.Context) (err error) {
	var reader sync.WaitGroup
	defer reader.Wait()
	defer l.term.release(ctx)
	if err := l.open(ctx); err != nil {
		return ignoreEnd(ctx, err)
	}
	defer l.publisher.Close()
	// A batch that was begun is finished although ctx ends: half of it may be on the broker already. But a broker that is
	// away does not keep the relay from ending.
	work, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(nil)
	defer context.AfterFunc(ctx, func() { time.AfterFunc(settleTimeout, func() { lose(context.Canceled) }) })()

	if err := l.resend(work); err != nil {
		return ignoreEnd(ctx, err)
	}
	defer func() { // what is acknowledged is written down even when the term ends
		if failed := l.settle(); failed != nil { // then this is why it ended
			err = ignoreEnd(ctx, failed)
		}
		if err == nil { // nothing is on its way: a standby need not wait until the publisher is closed
			l.term.release(ctx)
		}
	}()
	reading, stop := context.WithCancel(ctx)
	defer stop()
	free, found := make(chan *batch, 2), make(chan *batch)
	free <- &batch{}
	free <- &batch{}
	from, limit := l.term.at, l.suspicion.limit(l.Batch)
	reader.Go(func() { l.readAhead(reading, from, limit, free, found) })

	watch := time.NewTicker(min(watchPoll, l.term.lease/3))
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watch.C:
			err = l.watch(ctx)
		case b := <-found:
			// Crash point: read but not sent. Nothing happened, the next leader reads the same batch.
			if err = b.err; err == nil {
				err = l.publish(work, b)
			}
			// Crash point: sent but the cursor not moved. The batch is sent again, under the same event ids, unless the
			// Publisher kept progress with it.
			if err == nil {
				err = l.moveBehind(work, b, lose)
			}
			free <- b
		}
		if err != nil {
			return ignoreEnd(ctx, err)
		}
	}
}

// open makes the term's Publisher and puts the cursor to where the term begins. The lease is kept meanwhile: two relays that
// take it from each other while a slow broker is being opened would shut out each other's Publishers for ever.
func (l *leader) open(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, max(openTimeout, l.term.lease))
	defer cancel()
	var publisher Publisher
	var kept *Progress
	err := l.whileLeading(opening, func(ctx context.Context) (err error) {
		publisher, kept, err = l.Open(ctx, l.Name)
		return err
	})
	if err == nil {
		err = l.term.renew(ctx)
	}
	if err == nil {
		err = l.term.begin(ctx, kept)
	}
	if err != nil {
		if publisher != nil { // it came too late
			publisher.Close()
		}
		return err
	}
	l.publisher = publisher
	return nil
}

// readAhead reads batches from position p on and hands them over, for as long as ctx lasts or until a read fails. A batch that
// found nothing is handed over once, when the relay becomes idle.
func (l *leader) readAhead(ctx context.Context, p Position, limit int, free <-chan *batch, found chan<- *batch) {
	statements, wait := newStatements(limit), busyPoll
	for b := range until(ctx, free) {
		for {
			begun := time.Now()
			b.err = b.read(ctx, l.DB, statements, limit, p)
			if tooLong(ctx, b.err) {
				l.away.Store(true)
				b.err = b.readLong(ctx, l.DB, statements, limit, p)
				l.away.Store(false)
			}
			if b.err != nil || b.next != p {
				l.OnRead(b.n, time.Since(begun))
				break
			}
			sleep(ctx, wait)
			if wait == idlePoll {
				continue
			}
			if wait = min(2*wait, idlePoll); wait == idlePoll {
				break
			}
		}
		more := b.n == limit || b.n < len(b.found)
		if b.next != p {
			p, wait = b.next, busyPoll
			if limit < l.Batch {
				limit = min(2*limit, l.Batch)
				statements = newStatements(limit)
			}
		}
		failed := b.err != nil
		select {
		case <-ctx.Done():
			return
		case found <- b: // from here on it is the publisher's
		}
		if failed {
			return
		}
		if !more {
			sleep(ctx, wait)
		}
	}
}

// until yields what comes from a channel until ctx ends.
func until[T any](ctx context.Context, from <-chan T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case v := <-from:
				if !yield(v) {
					return
				}
			}
		}
	}
}

// publish sends a batch, except what belongs to parked aggregates.
func (l *leader) publish(ctx context.Context, b *batch) error {
	// This process, or its connection, may have been stopped for longer than the lease, or may have let it lapse while it was idle:
	// then another leader may have sent this batch and what comes after it.
	if l.term.remaining() < l.term.lease/2 {
		if err := l.settle(); err != nil {
			return err
		}
		if err := l.term.renew(ctx); err != nil {
			return err
		}
	}
	_, err := l.send(ctx, b.messages(), l.term.progress(b.next))
	if n := durable(err); n > 0 { // the term ends, but what is acknowledged needs no repeating
		if settled := l.settle(); settled != nil {
			return settled
		}
		if moved := l.term.move(ctx, b.upTo(n)); moved != nil {
			return moved
		}
	}
	return err
}

// moveBehind lets the cursor follow a batch that is acknowledged, once it stands behind the one before. So a crash repeats
// two batches at most: this one, and the one that is with the broker by then.
func (l *leader) moveBehind(ctx context.Context, b *batch, lose context.CancelCauseFunc) error {
	if b.next == b.from {
		return nil
	}
	if err := l.settle(); err != nil {
		return err
	}
	moving, next := make(chan error, 1), b.next
	l.moving = moving
	go func() {
		err := l.term.move(ctx, next)
		if err != nil {
			lose(err) // what is with the broker is not ours any more
		}
		moving <- err
	}()
	return nil
}

// settle waits for the move that is under way.
func (l *leader) settle() error {
	if l.moving == nil {
		return nil
	}
	err := <-l.moving
	l.moving, l.moved = nil, l.moved || err == nil
	return err
}

// watch looks whether dead letters were released, and keeps the lease while a long read is under way.
func (l *leader) watch(ctx context.Context) error {
	if err := l.settle(); err != nil {
		return err
	}
	if l.away.Load() {
		if err := l.keep(ctx); err != nil {
			return err
		}
	}
	letters, err := released(ctx, l.DB, l.Name, l.term.at)
	if err == nil && letters {
		err = errReleased
	}
	return err
}

// whileLeading runs do and keeps the lease meanwhile, as long as the broker answers. It cancels do when the lease is lost, or
// after publishTimeout.
func (l *leader) whileLeading(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, publishTimeout, errSlow)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	tick := time.NewTicker(l.term.lease / 3)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				err = &BrokerError{err}
			}
			return err
		case <-tick.C:
			if err := l.keep(ctx); err != nil {
				cancel()
				return errors.Join(err, <-done)
			}
		}
	}
}

// keep renews the lease when the broker answers, although a batch takes its time. A leader that cannot reach the broker
// lets another one try.
func (l *leader) keep(ctx context.Context) error {
	if l.term.remaining() > l.term.lease/2 {
		return nil
	}
	if l.publisher == nil { // it is being opened, which has a time limit
		return l.term.renew(ctx)
	}
	probing, cancel := context.WithTimeout(ctx, l.term.lease/3)
	defer cancel()
	if err := l.publisher.Ping(probing); err != nil {
		if l.term.remaining() > 0 {
			return nil
		}
		return fmt.Errorf("the lease ran out while the broker did not answer: %w", &BrokerError{err})
	}
	return l.term.renew(ctx)
}

// ignoreEnd returns nil for errors that only say that ctx has ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ErrRestored) {
		return nil
	}
	return err
}

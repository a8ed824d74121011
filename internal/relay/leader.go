package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errReleased ends a term because an operator has released dead letters: the next one begins with them.
var errReleased = errors.New("dead letters were released")

// errSlow ends a term when the broker cannot be reached, or answers and does not acknowledge: too few replicas, no leader of a partition.
var errSlow = fmt.Errorf("the broker did not acknowledge within %s", publishTimeout)

// leader is a relay in one term. Three things happen side by side, each in order: batch n+1 is read, batch n is with the broker,
// and the cursor moves behind what is acknowledged. No transaction is open meanwhile. A heartbeat keeps the lease.
type leader struct {
	*Relay
	term      *term
	publisher Publisher
	parked    map[aggregate]int64 // from which id on
	skipped   map[int64]bool      // events behind the cursor's position that an operator has given up
	suspicion *suspicion

	lose   context.CancelCauseFunc // ends the term
	acked  Position                // behind what the broker has acknowledged
	ahead  int                     // events that are acknowledged and covered by no move that has ended
	target Position                // of the last move
	under  int                     // events that this move covers
	moving chan error              // what became of it, which is noted later; nil: it was noted
	moved  bool                    // whether the cursor ever moved
	total  Ahead                   // what was acknowledged in this term
	marks  []Ahead                 // the total at the last places that the cursor was moved to
}

// lead moves batches until ctx ends (nil) or the term does.
func (l *leader) lead(ctx context.Context) error {
	// A batch that was begun is finished although ctx ends: half of it may be on the broker already. But a broker that is
	// away does not keep the relay from ending. And whatever the term waits for, it ends with its lease.
	work, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	l.lose = lose
	defer context.AfterFunc(ctx, func() { time.AfterFunc(settleTimeout, func() { lose(context.Canceled) }) })()
	var heart sync.WaitGroup
	heart.Go(func() {
		if err := l.term.keep(work); err != nil {
			lose(err)
		}
	})

	err := l.run(ctx, work)
	if lost := context.Cause(work); lost != nil {
		err = lost
	}
	if failed := l.finish(ctx); err == nil {
		err = failed
	}

	lose(nil)
	heart.Wait()
	if err == nil { // nothing is on its way: a standby need not wait until the publisher is closed
		l.term.release(ctx)
	}
	if l.publisher != nil {
		l.publisher.Close()
	}
	l.term.release(ctx)
	if ctx.Err() != nil && !errors.Is(err, ErrRestored) {
		return nil // which is all that err says
	}
	return err
}

// run moves batches as long as nothing fails. ctx ends when the relay is to end, work with the term.
func (l *leader) run(ctx, work context.Context) error {
	var reader sync.WaitGroup
	defer reader.Wait()
	reading, stop := context.WithCancel(work)
	defer stop()
	defer context.AfterFunc(ctx, stop)()

	if err := l.open(reading); err != nil {
		return err
	}
	if err := l.resend(work); err != nil {
		return err
	}

	free, found := make(chan *batch, 2), make(chan *batch)
	free <- &batch{}
	free <- &batch{}
	from, limit := l.acked, l.suspicion.limit(l.Batch)
	defer close(free)
	reader.Go(func() { l.readAhead(reading, from, limit, free, found) })

	move, watch := time.NewTicker(moveEvery), time.NewTicker(watchPoll)
	defer move.Stop()
	defer watch.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-work.Done():
			return context.Cause(work)
		case <-watch.C:
			var letters bool
			if letters, err = released(work, l.DB, l.Name, l.acked); err == nil && letters {
				err = errReleased
			}
		case <-move.C:
			l.follow(work)
		case b := <-found:
			// Crash point: read but not sent. Nothing happened, the next leader reads the same batch.
			if err = b.err; err == nil {
				err = l.publish(work, b)
			}
			// Crash point: sent but the cursor not moved. The batch is sent again, under the same event ids, unless the
			// Publisher kept progress with it.
			free <- b
		}
		if err != nil {
			return err
		}
	}
}

// open makes the term's Publisher and finds where the term begins.
func (l *leader) open(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, max(openTimeout, l.term.lease))
	defer cancel()
	publisher, kept, err := l.Open(opening, l.Name)
	if err != nil {
		return &BrokerError{err}
	}
	l.publisher = publisher

	if err := l.term.begin(ctx, kept); err != nil {
		return err
	}
	l.acked, l.target, l.total.Batches = l.term.at, l.term.at, l.term.at.Batches
	l.marks = []Ahead{l.total}
	return nil
}

// readAhead reads batches from position p on and hands them over, for as long as ctx lasts or until a read fails. A batch that
// found nothing is handed over once, when the relay becomes idle.
func (l *leader) readAhead(ctx context.Context, p Position, limit int, free <-chan *batch, found chan<- *batch) {
	statements, wait := newStatements(limit), busyPoll
	for b := range free {
		for {
			begun := time.Now()
			b.err = b.read(ctx, l.DB, statements, limit, p)
			if tooLong(ctx, b.err) {
				b.err = b.readWithin(ctx, longTimeout, l.DB, statements, limit, p)
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

// publish sends a batch, except what belongs to parked aggregates, and lets the cursor follow. A crash repeats what is acknowledged
// and not moved behind, and the batch that is with the broker: as many events as two batches have, at most.
func (l *leader) publish(ctx context.Context, b *batch) error {
	if l.ahead+b.n > 2*l.Batch {
		if err := l.settle(); err != nil {
			return err
		}
		l.follow(ctx)
	}

	next, total := l.term.progress(b.next), l.total
	total.Batches = b.next.Batches
	for _, m := range b.messages() {
		total.add(m.EventID)
	}
	for _, mark := range slices.Concat(l.marks, []Ahead{l.total}) { // when the term ends now, the cursor is moved there
		next.Ahead = append(next.Ahead, Ahead{mark.Batches, total.Events - mark.Events, total.Hash - mark.Hash})
	}
	_, err := l.send(ctx, b.messages(), next)
	if err != nil {
		if n := durable(err); n > 0 { // the term ends, but what is acknowledged needs no repeating
			l.acked = b.upTo(n)
		}
		return err
	}

	l.acked, l.ahead, l.total = b.next, l.ahead+b.n, total
	if l.ahead >= l.Batch {
		l.follow(ctx)
	}
	return nil
}

// follow begins to move the cursor behind what is acknowledged, unless it is moving. Each move leaves a dead row behind, which a snapshot
// that is held open keeps: so small batches share one.
func (l *leader) follow(ctx context.Context) {
	if l.acked == l.target || l.moving != nil && len(l.moving) == 0 || l.settle() != nil {
		return
	}
	l.target, l.under, l.moving = l.acked, l.ahead, make(chan error, 1)
	l.marks = append(l.marks[max(0, len(l.marks)-mostMarks):], l.total)

	go func(moving chan<- error, p Position) {
		err := l.term.move(ctx, p)
		if err != nil {
			l.lose(err) // what is with the broker is not ours any more
		}
		moving <- err
	}(l.moving, l.target)
}

// settle waits for the move that is under way.
func (l *leader) settle() (err error) {
	if l.moving != nil {
		err = <-l.moving
		l.moving, l.moved, l.ahead = nil, l.moved || err == nil, l.ahead-l.under
	}
	return err
}

// finish moves the cursor behind all that is acknowledged, even when the term ends in a failure.
func (l *leader) finish(ctx context.Context) error {
	if err := l.settle(); err != nil || l.acked == l.target {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	err := l.term.move(ctx, l.acked)
	l.moved = l.moved || err == nil
	return err
}

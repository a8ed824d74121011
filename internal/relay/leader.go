package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errReleased ends a term because an operator has released dead letters: the next one begins with
// them.
var errReleased = errors.New("dead letters were released")

// errSlow ends a term when the broker is unreachable, or does not acknowledge: too few replicas, no
// leader.
var errSlow = fmt.Errorf("the broker did not acknowledge within %s", publishTimeout)

// leader is a relay in one term. Three things happen side by side, each in order: batch n+1 is
// read, batch n is with the broker, and the cursor moves behind what is acknowledged. No
// transaction is open meanwhile.
type leader struct {
	*Relay
	term      *term
	publisher Publisher
	parked    map[aggregate]int64 // from which id on
	skipped   map[int64]bool      // events that an operator gave up before the cursor passed them
	isolation *isolation

	end     context.CancelCauseFunc // ends the term
	acked   Position                // behind what the broker has acknowledged
	unmoved int                     // acknowledged events that no finished move covers
	target  Position                // of the last move
	covered int                     // events that this move covers
	moving  chan error              // the result of this move; nil: there is none to wait for
	total   Ahead                   // what was acknowledged in this term
	marks   []Ahead                 // total at the last places that the cursor was moved to
}

// lead moves batches until ctx ends (nil) or the term does.
func (l *leader) lead(ctx context.Context) error {
	// A batch that was begun is finished although ctx ends: half of it may be on the broker. But
	// neither a broker that is away nor anything else may outlast settleTimeout or the lease.
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	l.end = end
	settle := func() { time.AfterFunc(settleTimeout, func() { end(context.Canceled) }) }
	defer context.AfterFunc(ctx, settle)()

	var heart sync.WaitGroup
	heart.Go(func() {
		if err := l.term.heartbeat(work); err != nil {
			end(err)
		}
	})

	// The reason why the term ended counts more than what failed because of it.
	err := l.run(ctx, work)
	if cause := context.Cause(work); cause != nil {
		err = cause
	}
	if failed := l.finish(ctx); err == nil {
		err = failed
	}

	end(nil)
	heart.Wait()

	// When nothing is on its way, a standby need not wait until the publisher is closed.
	if err == nil {
		l.term.release(ctx)
	}
	if l.publisher != nil {
		l.publisher.Close()
	}
	l.term.release(ctx)

	if ctx.Err() != nil && !errors.Is(err, ErrRestored) {
		return nil // err only says that ctx ended
	}
	return err
}

// run moves batches as long as nothing fails. ctx ends when the relay is to stop, work with the
// term.
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

	// One batch is read while the one before it is with the broker.
	found, from, limit := make(chan *batch), l.acked, l.isolation.limit(l.Batch)
	reader.Go(func() { l.readAhead(reading, from, limit, found) })

	move, watch := time.NewTicker(moveEvery), time.NewTicker(watchPoll)
	defer move.Stop()
	defer watch.Stop()
	for {
		// A slow broker takes longer than that for a batch, and then both are always ready: select may
		// choose the batch, again and again, and the cursor would seem to be stuck.
		select {
		case <-move.C:
			l.startMove(work)
		default:
		}

		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-work.Done():
			return context.Cause(work)
		case <-watch.C:
			err = l.watch(work)
		case <-move.C:
			l.startMove(work)
		case b := <-found:
			// Crash point: read but not sent. The next leader reads the same batch.
			if err = b.err; err == nil {
				err = l.publish(work, b)
			}
			// Crash point: sent but the cursor not moved. The batch is sent again under the same
			// event ids, unless the Publisher kept progress with it.
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
	publisher, kept, err := l.Open(opening, l.Name, l.term.cursor)
	if err != nil {
		return &BrokerError{err}
	}

	// From here on, no earlier term can publish, as far as the broker can tell them apart.
	l.publisher = publisher
	if err := l.term.begin(ctx, kept); err != nil {
		return err
	}

	l.acked, l.target, l.total.Batches = l.term.at, l.term.at, l.term.at.Batches
	l.marks = []Ahead{l.total}
	return nil
}

// readAhead reads batches from p on and hands them over, until ctx ends or a read fails. An empty
// batch is handed over once, when the relay becomes idle.
func (l *leader) readAhead(ctx context.Context, p Position, limit int, found chan<- *batch) {
	b, next := &batch{}, &batch{} // when one is taken over, the other was published
	wait, idle := busyPoll, false
	for {
		begun := time.Now()
		b.err = b.read(ctx, l.DB, limit, p)
		if b.err == nil && b.n > 0 && b.timeline != l.term.identity.Timeline {
			b.err = ErrFenced // the pool has gone to a promoted standby, where p means nothing
		}

		more := b.n == limit || b.n < len(b.found)
		if b.err == nil && b.next == p {
			// Nothing new: ask less and less often.
			sleep(ctx, wait)
			if wait = min(2*wait, idlePoll); idle || wait < idlePoll {
				continue
			}
			idle = true
		} else if b.err == nil {
			l.OnRead(b.n, time.Since(begun))
			p, limit, wait, idle = b.next, min(2*limit, l.Batch), busyPoll, false
		}

		select {
		case <-ctx.Done():
			return
		case found <- b:
		}
		if b.err != nil {
			return
		}
		if !more {
			sleep(ctx, wait)
		}
		b, next = next, b
	}
}

// watch ends the term when dead letters wait to be sent.
func (l *leader) watch(ctx context.Context) error {
	if l.acked.ChunkSeen != "" {
		return nil // what the cursor has passed is known after the last chunk
	}

	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var wait bool
	err := l.DB.QueryRow(ctx, anyReleased, l.Name, l.acked.Last, l.acked.Seen).Scan(&wait)
	switch {
	case err != nil:
		return fmt.Errorf("look for released dead letters: %w", err)
	case wait:
		return errReleased
	}

	return nil
}

// publish sends a batch, except events of parked aggregates, and lets the cursor follow. A crash
// repeats what is acknowledged and not moved behind, and what is with the broker: two full batches
// at most.
func (l *leader) publish(ctx context.Context, b *batch) error {
	// Do not let more than two batches be sent and not moved behind.
	if l.unmoved+b.n > 2*l.Batch {
		if err := l.awaitMove(); err != nil {
			return err
		}
		l.startMove(ctx)
	}

	// The progress sums up what the broker has beyond each of the cursor's last places: by it, the next
	// term recognises a database that lost moves, but no events.
	var total Ahead
	sent, err := l.send(ctx, b.messages(), func(sent []Message) Progress {
		next := l.term.progress(b.next)
		total = l.total
		total.Batches = b.next.Batches
		total.Events += int64(b.n - len(sent))
		for i := range sent {
			total.add(sent[i].EventID)
		}

		// If the term ends now, finish moves the cursor to l.total: that is a mark as well.
		for _, mark := range slices.Concat(l.marks, []Ahead{l.total}) {
			ahead := Ahead{mark.Batches, total.Events - mark.Events, total.Hash - mark.Hash}
			next.Ahead = append(next.Ahead, ahead)
		}
		return next
	})
	if err != nil {
		if n := len(sent); n > 0 { // the term ends, but what is acknowledged needs no repeating
			is := func(m Message) bool { return m.ID == sent[n-1].ID }
			l.acked = b.upTo(slices.IndexFunc(b.found, is) + 1)
		}
		return err
	}

	l.acked, l.unmoved, l.total = b.next, l.unmoved+b.n, total
	if l.unmoved >= l.Batch {
		l.startMove(ctx)
	}

	return nil
}

// startMove begins to move the cursor behind what is acknowledged, unless it is moving. Small
// batches share a move: each leaves a dead row, which a snapshot that is held open keeps.
func (l *leader) startMove(ctx context.Context) {
	busy := l.moving != nil && len(l.moving) == 0
	if l.acked == l.target || busy || l.awaitMove() != nil {
		return
	}

	l.target, l.covered, l.moving = l.acked, l.unmoved, make(chan error, 1)
	l.marks = append(l.marks[max(0, len(l.marks)-maxMarks):], l.total)

	go func(moving chan<- error, p Position) {
		err := l.term.move(ctx, p)
		if err != nil {
			l.end(err) // another relay may lead: stop what is with the broker
		}
		moving <- err
	}(l.moving, l.target)
}

// awaitMove waits for the move that was started last.
func (l *leader) awaitMove() (err error) {
	if l.moving != nil {
		err = <-l.moving
		l.moving, l.unmoved = nil, l.unmoved-l.covered
	}
	return err
}

// finish moves the cursor behind all that is acknowledged, even when the term ends in a failure.
func (l *leader) finish(ctx context.Context) error {
	if err := l.awaitMove(); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	l.startMove(ctx)
	return l.awaitMove()
}

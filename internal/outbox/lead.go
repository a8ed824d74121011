package outbox

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
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

// send publishes messages, parks what is refused for certain, and returns what was sent. What an error calls Durable are those of ms.
func (l *leader) send(ctx context.Context, ms []Message, next Progress) (sent []Message, err error) {
	for {
		sent, parked := l.split(ms)
		if next.Resent != nil {
			next.Resent = ids(sent)
		}
		if len(parked) > 0 {
			if err := l.term.park(ctx, parked, nil); err != nil {
				return nil, err
			}
		}
		begun := time.Now()
		err := l.whileLeading(ctx, func(ctx context.Context) error { return l.publisher.Publish(ctx, sent, next) })
		var refused *RefusedError
		var partial *PartialError
		switch {
		case err == nil:
			if len(sent) > 0 {
				l.suspicion.clear(len(sent))
				l.OnPublish(sent, time.Since(begun))
			}
			return sent, nil
		case errors.As(err, &partial):
			// What failed must not take the others with it again and again, each time one of them more often.
			l.suspicion.raise(sent, nil)
			partial.Durable = placeIn(ms, sent, partial.Durable)
			return nil, err
		case !errors.As(err, &refused):
			return nil, err
		}
		m := &sent[refused.Index]
		if !refused.Unsent && len(sent) > 1 {
			l.suspicion.raise(sent, refused.Ahead)
			refused.Durable = placeIn(ms, sent, refused.Durable)
			return nil, refused
		}
		if err := l.term.park(ctx, []int64{m.ID}, l.suspicion.verdict(m, refused)); err != nil {
			return nil, err
		}
		l.parked[m.aggregate()] = m.ID // what stands before it in the batch goes out
		l.OnPark(*m, refused.Err)
		l.Log.ErrorContext(ctx, "an event was refused, its aggregate is parked", "relay", l.Name, "id", m.ID, "event", m.EventID,
			"aggregate_type", m.AggregateType, "aggregate_id", m.AggregateID, "error", refused.Err)
		if !refused.Unsent {
			return nil, fmt.Errorf("after a refusal the publisher is made anew: %w", refused)
		}
	}
}

// placeIn returns where the message stands in ms that stands at place n of those of ms that were sent: parked ones are among them.
func placeIn(ms, sent []Message, n int) int {
	if n == len(sent) {
		return len(ms)
	}
	return slices.IndexFunc(ms, func(m Message) bool { return m.ID == sent[n].ID })
}

// split says which messages go out, and the ids of those that must not.
func (l *leader) split(ms []Message) (out []Message, parked []int64) {
	if len(l.parked)+len(l.skipped) == 0 {
		return ms, nil
	}
	for _, m := range ms {
		from, is := l.parked[m.aggregate()]
		switch {
		case l.skipped[m.ID]: // before the cursor had passed it
		case is && m.ID >= from:
			parked = append(parked, m.ID)
		default:
			out = append(out, m)
		}
	}
	return out, parked
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

// resend sends the dead letters that were released, and finds out which aggregates stay parked.
func (l *leader) resend(ctx context.Context) (err error) {
	l.parked = map[aggregate]int64{}
	for b, limit := (batch{}), l.suspicion.limit(l.Batch); ; limit = min(2*limit, l.Batch) {
		if l.term.at.ChunkSeen != "" {
			break
		}
		if err := l.term.readReleased(ctx, &b, limit); err != nil {
			return err
		}
		if b.n == 0 {
			break
		}
		next := l.term.progress(l.term.at)
		next.Resent = []int64{}
		sent, err := l.send(ctx, b.messages(), next)
		if n := durable(err); n > 0 {
			sent, _ = l.split(b.found[:n])
		}
		// Crash point: sent but not noted. They are sent again, unless the Publisher kept progress with them.
		if noted := l.term.sent(ctx, ids(sent)); noted != nil {
			return noted
		}
		if err != nil {
			return err
		}
		if len(sent) == 0 { // refused again. Should it be released meanwhile, watch sees it
			break
		}
	}
	if l.parked, err = l.term.parked(ctx); err == nil {
		l.skipped, err = l.term.skipped(ctx)
	}
	return err
}

func ids(ms []Message) []int64 {
	ids := make([]int64, len(ms))
	for i := range ms {
		ids[i] = ms[i].ID
	}
	return ids
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

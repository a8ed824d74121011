package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// session is what Run knows between two polls.
type session struct {
	*Consumer
	member *member
	work   map[partition]*backlog
	done   map[partition]int64 // next offset where it is not committed yet

	outages int       // in a row
	resume  time.Time // nothing is tried before
}

// backlog is what was fetched of a partition and is not done. While there is any, nothing more is fetched of it.
type backlog struct {
	messages []message
	failures int // of the first message, in a row
	timeouts int // among them
	alone    int // how many are to be done one by one, since one of them fails
	again    time.Time
	held     bool
}

func (s *session) forget(lost []partition) {
	for _, p := range lost {
		delete(s.work, p) // the next owner fetches it
		delete(s.done, p)
	}
}

func (s *session) take(fetched map[partition][]message) {
	for p, messages := range fetched {
		if s.work[p] == nil {
			s.work[p] = &backlog{}
		}
		s.work[p].messages = append(s.work[p].messages, messages...)
	}
}

// pass works on every partition whose time has come, commits the offsets and returns when the next one's time comes, zero
// if nothing waits.
func (s *session) pass(ctx context.Context) (wake time.Time) {
	start := time.Now()
	for p, b := range s.work {
		if ctx.Err() != nil || time.Since(start) > passLimit || start.Before(s.resume) {
			break
		}
		if start.Before(b.again) {
			continue
		}
		if err := s.advance(ctx, p, b, start.Add(passLimit)); err != nil {
			s.outage(ctx, err)
			break
		}
	}
	// Crash point: committed in the database, offsets not. All of it is delivered again and refused by the inbox.
	if len(s.done) > 0 {
		if err := s.member.commit(ctx, s.done); err == nil {
			clear(s.done)
		} else {
			s.Log.WarnContext(ctx, "offsets not committed, trying again", "error", err)
			wake = time.Now().Add(commitBackoff)
		}
	}
	for p, b := range s.work {
		if len(b.messages) == 0 {
			if b.held {
				s.member.release(p)
			}
			delete(s.work, p)
			continue
		}
		if !b.held {
			b.held = true
			s.member.hold(p)
		}
		next := b.again
		if next.Before(s.resume) {
			next = s.resume
		}
		if next.IsZero() {
			next = start // it had no turn: at once
		}
		if wake.IsZero() || next.Before(wake) {
			wake = next
		}
	}
	return wake
}

// advance does the messages of a partition in order, as far as it goes until the limit. An error is an outage: of the
// database, not of an event.
func (s *session) advance(ctx context.Context, p partition, b *backlog, limit time.Time) error {
	for first := true; len(b.messages) > 0 && ctx.Err() == nil; first = false {
		start := time.Now()
		if !first && start.After(limit) {
			return nil // a rebalance waits for the pass, for rebalanceTimeout at most
		}
		size := len(b.messages)
		if b.alone > 0 || b.failures > 0 {
			size = 1
		}
		batch, n := b.next(size)
		err := s.attempt(ctx, batch)
		var away *outageError
		switch {
		case err == nil:
			s.recovered(ctx)
			s.done[p] = b.messages[n-1].event.Offset + 1
			b.pass(n)
		case errors.As(err, &away):
			return err
		case n > 1:
			b.alone = n // one of them fails: those before it take effect, those behind it wait
		default:
			b.failures++
			if timedOut(err) {
				b.timeouts++
			}
			outcome, err := s.failed(ctx, b, err)
			s.OnEvent(outcome, time.Since(start))
			if err != nil || outcome == Failed {
				return err
			}
			// Crash point: a letter, and its offset not committed. It is delivered again and found among the letters.
			s.done[p] = b.messages[0].event.Offset + 1
			b.pass(1)
		}
	}
	return nil
}

// pass forgets the first n messages, which are done.
func (b *backlog) pass(n int) {
	b.messages = b.messages[n:]
	b.failures, b.timeouts, b.alone = 0, 0, max(0, b.alone-n)
}

// failed says what to do with the first message, which has failed once more: to wait and try again, or to go on, since it is
// a dead letter now.
func (s *session) failed(ctx context.Context, b *backlog, reason error) (outcome string, err error) {
	m := b.messages[0]
	e := m.event
	log := s.Log.With("topic", e.Topic, "partition", e.Partition, "offset", e.Offset, "event_id", e.ID, "event_type", e.Type,
		"subject", e.Subject, "failures", b.failures, "error", reason)

	// What is no event, or has no day in the inbox, does not become one by waiting.
	forgotten := errors.Is(reason, ErrForgotten)
	again := b.failures-b.timeouts < s.Tries && b.failures < 2*s.Tries
	if m.err == nil && !forgotten && again {
		wait := s.pause(b.failures)
		b.again = time.Now().Add(wait)
		log.WarnContext(ctx, "event failed, its partition waits", "retry_in", wait)
		return Failed, nil
	}

	l := m.letter(reason.Error(), b.failures)
	l.dayless = forgotten
	var away *outageError
	switch err := s.park(ctx, l); {
	case err == nil:
		log.ErrorContext(ctx, "event is a dead letter now, its aggregate is parked")
		return Parked, nil
	case errors.As(err, &away):
		return Failed, err
	default: // errFlood, or what is wrong with the letters themselves
		wait := backoff(b.failures, failureBackoff)
		b.again = time.Now().Add(wait)
		log.ErrorContext(ctx, "event failed and cannot be parked, its partition waits", "retry_in", wait, "why", err)
		return Failed, nil
	}
}

// next returns the first n messages that are events, at most size, and stops before a message that is none. If that is the
// first one, it returns that alone.
func (b *backlog) next(size int) (batch []message, n int) {
	for _, m := range b.messages[:min(size, len(b.messages))] {
		switch {
		case m.marker:
		case m.err != nil && n == 0:
			return []message{m}, 1
		case m.err != nil:
			return batch, n
		default:
			batch = append(batch, m)
		}
		n++
	}
	return batch, n
}

func (s *session) outage(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.outages++
	wait := backoff(s.outages, outageBackoff)
	s.resume = time.Now().Add(wait)
	s.Log.WarnContext(ctx, "database away, waiting", "failures", s.outages, "retry_in", wait, "error", err)
}

func (s *session) recovered(ctx context.Context) {
	if s.outages > 0 {
		s.outages = 0
		s.Log.InfoContext(ctx, "database is back")
	}
}

// backoff doubles with each failure up to longest. Half of it is left to chance, so that many do not come back at once.
func backoff(failures int, longest time.Duration) time.Duration {
	d := min(longest, firstBackoff<<min(failures-1, 10))
	return d/2 + rand.N(d/2)
}

package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// session is what Run knows between two polls.
type session struct {
	*Consumer
	member *member
	work   map[partition]*backlog
	done   map[partition]message // the last one of each partition, until its offset is committed

	outages int       // in a row
	resume  time.Time // when the outage's pause ends
}

// backlog is what was fetched of a partition and is not done. While there is any, nothing more is
// fetched of that partition.
type backlog struct {
	messages []message
	failures int       // of the first message, in a row
	timeouts int       // among them
	alone    int       // how many to do one by one, because one of them fails
	again    time.Time // when the first message may be tried
}

// forget drops partitions that belong to another member now.
func (s *session) forget(lost []partition) {
	for _, p := range lost {
		delete(s.work, p) // the next owner fetches it
		delete(s.done, p)
	}
}

// take adds fetched messages to the backlogs.
func (s *session) take(fetched map[partition][]message) {
	for p, messages := range fetched {
		if s.work[p] == nil {
			s.work[p] = &backlog{}
		}
		s.work[p].messages = append(s.work[p].messages, messages...)
	}
}

// pass works on every partition that is due and commits the offsets. It returns when the next one
// is due, or zero if nothing waits.
func (s *session) pass(ctx context.Context) (wake time.Time) {
	start := time.Now()
	share := passLimit / time.Duration(max(1, len(s.work)))
	for p, b := range s.work {
		if ctx.Err() != nil || time.Since(start) > passLimit || start.Before(s.resume) {
			break
		}
		if start.Before(b.again) {
			continue
		}

		if err := s.advance(ctx, p, b, time.Now().Add(share)); err != nil {
			s.suspend(ctx, err)
			break
		}
	}

	// Crash point: the database has committed, the offsets have not. Everything is delivered again
	// and the inbox refuses it.
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
			s.member.release(p)
			delete(s.work, p)
			continue
		}

		// What is left here is done before any more of its partition is fetched.
		s.member.hold(p)

		next := start // it had no turn in this pass: due at once
		for _, t := range []time.Time{b.again, s.resume} {
			if t.After(next) {
				next = t
			}
		}
		if wake.IsZero() || next.Before(wake) {
			wake = next
		}
	}
	return wake
}

// advance does the messages of a partition in order until one has to wait or the limit is reached.
// An error is an outage of the database; the failure of an event is not.
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

		switch {
		case err == nil:
			s.recovered(ctx)
			s.done[p] = b.messages[n-1]
			b.pass(n)
			s.stalls.moved(p)
		case errors.Is(err, errOutage):
			return err
		case n > 1:
			// One of them fails: one by one, those before it take effect and those behind it wait.
			b.alone = n
		default:
			b.failures++
			if timedOut(err) {
				b.timeouts++
			}

			outcome, err := s.failed(ctx, p, b, err)
			s.OnEvent(outcome, time.Since(start))
			if err != nil || outcome == Failed {
				return err
			}

			// Crash point: the letter is stored, its offset is not committed. The event is
			// delivered again and found among the letters.
			s.done[p] = b.messages[0]
			b.pass(1)
			s.stalls.moved(p)
		}
	}
	return nil
}

// pass removes the first n messages, which are done.
func (b *backlog) pass(n int) {
	b.messages = b.messages[n:]
	b.failures, b.timeouts, b.alone = 0, 0, max(0, b.alone-n)
}

// failed decides what to do with the first message, which has failed once more. Failed: it is tried
// again after a pause. Parked: it is a dead letter now, go on with the next.
func (s *session) failed(
	ctx context.Context, p partition, b *backlog, reason error,
) (outcome string, err error) {
	m := b.messages[0]
	e := m.event
	log := s.Log.With("topic", e.Topic, "partition", e.Partition, "offset", e.Offset,
		"event_id", e.ID, "event_type", e.Type, "subject", e.Subject,
		"failures", b.failures, "error", reason)

	// Waiting does not help a record that is no event, or one whose day the inbox does not cover.
	forgotten := errors.Is(reason, ErrForgotten)
	again := b.failures-b.timeouts < s.Tries && b.failures < 2*s.Tries
	if m.err == nil && !forgotten && again {
		wait := s.pause(b.failures)
		b.again = time.Now().Add(wait)
		s.stalls.blame(p, fmt.Sprintf("event %s failed %d times: %v", e.ID, b.failures, reason))
		log.WarnContext(ctx, "event failed, its partition waits", "retry_in", wait)
		return Failed, nil
	}

	switch err := s.park(ctx, m, clean(reason.Error()), b.failures, forgotten); {
	case err == nil:
		log.ErrorContext(ctx, "event is a dead letter now, its aggregate is parked")
		return Parked, nil
	case errors.Is(err, errOutage):
		return Failed, err
	default: // errFlood, or storing the letter itself fails
		wait := backoff(b.failures, firstBackoff, failureBackoff)
		b.again = time.Now().Add(wait)
		s.stalls.blame(p, fmt.Sprintf("event %s failed and cannot be parked: %v", e.ID, err))
		log.ErrorContext(ctx, "event failed and cannot be parked, its partition waits",
			"retry_in", wait, "why", err)

		return Failed, nil
	}
}

// next returns the events among the first n messages; n is at most size. It stops before a record
// that is no event, or returns it alone if it comes first.
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

// suspend pauses all partitions in an outage, longer each time in a row.
func (s *session) suspend(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}

	s.outages++
	wait := backoff(s.outages, firstBackoff, outageBackoff)
	s.resume = time.Now().Add(wait)

	s.stalls.blame(partition{}, fmt.Sprintf("database away: %v", err))
	s.Log.WarnContext(ctx, "database away, waiting",
		"failures", s.outages, "retry_in", wait, "error", err)
}

func (s *session) recovered(ctx context.Context) {
	if s.outages > 0 {
		s.outages = 0
		s.Log.InfoContext(ctx, "database is back")
	}
}

package inbox

import (
	"context"
	"errors"
	"fmt"
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
		if err := s.advance(ctx, p, b); err != nil {
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

// advance does the messages of a partition in order, as far as it goes. An error is an outage: of the database, not of an
// event.
func (s *session) advance(ctx context.Context, p partition, b *backlog) error {
	size := len(b.messages)
	if b.failures > 0 {
		size = 1
	}
	for len(b.messages) > 0 && ctx.Err() == nil {
		start := time.Now()
		events, n, err := b.next(size)
		if err == nil && len(events) > 0 {
			err = s.attempt(ctx, events)
		}
		var away *outageError
		switch {
		case err == nil:
			s.recovered(ctx)
			s.done[p] = b.messages[n-1].event.Offset + 1
			b.messages, b.failures = b.messages[n:], 0
		case errors.As(err, &away):
			return err
		case n > 1:
			size = 1 // one of them fails: those before it take effect, those behind it wait
		default:
			b.failures++
			wait := backoff(b.failures, failureBackoff)
			b.again = time.Now().Add(wait)
			s.OnEvent(Failed, time.Since(start))
			e := b.messages[0].event
			s.Log.ErrorContext(ctx, "event failed, its partition waits", "topic", e.Topic, "partition", e.Partition, "offset", e.Offset,
				"event_id", e.ID, "event_type", e.Type, "subject", e.Subject, "failures", b.failures, "retry_in", wait, "error", err)
			return nil
		}
	}
	return nil
}

// next returns the events of the first n messages, at most size, and stops before a message that is no event. If that is
// the first one, it returns what is wrong with it.
func (b *backlog) next(size int) (events []Event, n int, err error) {
	for _, m := range b.messages[:min(size, len(b.messages))] {
		switch {
		case m.marker:
		case m.err != nil && n == 0:
			return nil, 1, fmt.Errorf("read event: %w", m.err)
		case m.err != nil:
			return events, n, nil
		default:
			events = append(events, m.event)
		}
		n++
	}
	return events, n, nil
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

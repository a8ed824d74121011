package relay

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// send publishes messages, parks those that are certainly refused, and returns what was sent: what is
// durable, if there is an error. next returns the progress once sent are on the broker and the others
// of ms are dead letters.
func (l *leader) send(
	ctx context.Context, ms []Message, next func(sent []Message) Progress,
) ([]Message, error) {
	for {
		// What is parked is a dead letter before the cursor passes it.
		sent, parked := l.split(ms)
		if len(parked) > 0 {
			if err := l.term.park(ctx, parked); err != nil {
				return nil, err
			}
		}

		begun := time.Now()
		err := l.publishInTime(ctx, sent, next(sent))
		failed, part := errors.AsType[*BatchError](err)
		switch {
		case err == nil:
			if len(sent) > 0 {
				l.isolation.succeeded(len(sent))
				l.OnPublish(sent, time.Since(begun))
			}
			return sent, nil
		case !part:
			return nil, err
		case !failed.Refused || !failed.Unsent && len(sent) > 1:
			// What failed must not repeat the others with it, again and again.
			l.isolation.begin(sent, failed.Ahead)
			return sent[:failed.Durable], err
		}

		// It was refused on its own. What is before it in the batch is sent in the next round.
		m := &sent[failed.Index]
		if err := l.term.refuse(ctx, m.ID, failed.Err, l.isolation.found(m)); err != nil {
			return nil, err
		}
		l.parked[m.aggregate()] = m.ID
		l.Log.ErrorContext(ctx, "an event was refused, its aggregate is parked",
			"relay", l.Name, "id", m.ID, "event", m.EventID,
			"aggregate_type", m.AggregateType, "aggregate_id", m.AggregateID, "error", failed.Err)
		if !failed.Unsent {
			return nil, fmt.Errorf("the publisher is not used again after a refusal: %w", failed)
		}
	}
}

// publishInTime publishes while this relay certainly leads, and gives up after publishTimeout.
func (l *leader) publishInTime(ctx context.Context, ms []Message, next Progress) error {
	// The process may have been frozen for longer than the lease, heartbeat and all, and another
	// leader may have sent these messages and later ones. Find out before sending.
	if l.term.remaining() < l.term.lease/2 {
		if err := l.term.renew(ctx); err != nil {
			return err
		}
	}

	ctx, cancel := context.WithTimeoutCause(ctx, publishTimeout, errSlow)
	defer cancel()
	if err := l.publisher.Publish(ctx, ms, next); err != nil {
		return &BrokerError{err}
	}

	return nil
}

// split returns the messages to send, and the ids of those that belong to parked aggregates.
func (l *leader) split(ms []Message) (out []Message, parked []int64) {
	if len(l.parked)+len(l.skipped) == 0 {
		return ms, nil
	}

	for _, m := range ms {
		from, waits := l.parked[m.aggregate()]
		switch {
		case l.skipped[m.ID]:
		case waits && m.ID >= from:
			parked = append(parked, m.ID)
		default:
			out = append(out, m)
		}
	}

	return out, parked
}

// resend sends the dead letters that were released, and finds out which aggregates stay parked.
func (l *leader) resend(ctx context.Context) error {
	l.parked = map[aggregate]int64{}
	b, limit := batch{}, l.isolation.limit(l.Batch)
	for l.term.at.ChunkSeen == "" {
		at := l.term.at
		err := b.query(ctx, l.DB, readTimeout, limit, readReleased, l.Name, at.Last, at.Seen, limit+1)
		if err != nil {
			return fmt.Errorf("read dead letters: %w", err)
		}
		if b.n == 0 {
			break
		}

		sent, err := l.send(ctx, b.messages(), func(sent []Message) Progress {
			next := l.term.progress(at)
			next.Resent = ids(sent)
			return next
		})
		// Crash point: sent but not noted. They are sent again, unless the Publisher kept progress
		// with them.
		if noted := l.term.sent(ctx, ids(sent)); noted != nil {
			return noted
		}
		if err != nil {
			return err
		}
		if len(sent) == 0 { // refused again; if it is released meanwhile, watch sees it
			break
		}
		limit = min(2*limit, l.Batch)
	}

	return l.hold(ctx)
}

func ids(ms []Message) []int64 {
	ids := make([]int64, len(ms))
	for i := range ms {
		ids[i] = ms[i].ID
	}
	return ids
}

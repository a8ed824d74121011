package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

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
		err := l.publishInTime(ctx, sent, next)
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

// publishInTime publishes while this relay leads for certain, and gives up after publishTimeout: another relay may reach the broker.
func (l *leader) publishInTime(ctx context.Context, ms []Message, next Progress) error {
	// This process may have been stopped for longer than the lease, and its heartbeat with it: then another leader may have sent
	// these messages and what comes after them.
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

package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
)

type publisher struct {
	Producer
	key           string // of the cursor's progress: the relay's name and the cursor's id
	progressTopic string
	client        *kgo.Client
	close         func()         // closes the client, once
	maxBytes      map[string]int // by topic
	encoder       encoder

	durable relay.Progress // behind the last batch that was acknowledged
	kept    relay.Position // of the progress that was kept last
	keptAt  time.Time
	last    *relay.Progress // what was kept last, by this term or an earlier one

	// By topic, see partitions.go.
	counts  map[string]int32 // how many partitions its events are sent with
	made    map[string]int32 // how many this term made
	changed map[string]error // why nothing more is sent to it in this term
}

// Publish implements relay.Publisher. All records are produced at once; a key is on one partition,
// in order.
func (p *publisher) Publish(
	ctx context.Context, batch []relay.Message, next relay.Progress,
) (err error) {
	defer func() {
		if err != nil && ctx.Err() != nil { // the client is closed, and err may say only that
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}()
	// The client waits for records on their way beyond the end of ctx, possibly without limit. It
	// is not used again after an error, so close it: the term must be able to end.
	defer context.AfterFunc(ctx, p.close)()

	records := p.encoder.records(p.Producer, batch)
	if err := p.check(records); err != nil {
		return err
	}
	if err := p.count(ctx, records); err != nil {
		return err
	}

	if p.ExactlyOnce {
		if len(batch) == 0 && next.Position == p.kept {
			return nil
		}
		if err := p.transact(ctx, records, &next); err != nil {
			return err
		}
		// Crash point: committed but the cursor not moved. The next leader begins behind the
		// progress.
		p.kept = next.Position
		return nil
	}

	// Progress must not be durable before its batch. So it goes out with the next batch, or alone.
	at, due := p.durable, time.Since(p.keptAt) > keepEvery
	if len(batch) == 0 {
		at, due = next, true
	}

	var progress *kgo.Record
	if due && at.Position != p.kept {
		progress = p.progress(&at)
		p.kept, p.keptAt = at.Position, time.Now()
	}
	if err := p.produce(ctx, records, progress); err != nil {
		return err
	}

	p.durable = next
	return nil
}

// check returns a BatchError for the first record that the broker would refuse.
func (p *publisher) check(records []*kgo.Record) error {
	topic, limit := "", 0
	for i, r := range records {
		var err error
		if r.Topic != topic { // topics come in runs
			topic, limit = r.Topic, p.limit(r.Topic)
			if !legalTopic(topic) {
				err = fmt.Errorf("%w: %q", kerr.InvalidTopicException, topic)
			}
		}

		if n := size(r); err == nil && n > limit {
			err = fmt.Errorf("%w: %d bytes, topic %s takes %d", kerr.MessageTooLarge, n, topic, limit)
		}
		if err != nil {
			return &relay.BatchError{Refused: true, Index: i, Unsent: true, Err: err}
		}
	}
	return nil
}

// transact sends records and progress in one Kafka transaction: read_committed shows all of it or
// nothing.
func (p *publisher) transact(
	ctx context.Context, records []*kgo.Record, next *relay.Progress,
) error {
	if err := p.client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin a Kafka transaction: %w", err)
	}

	// Crash point, until the end of the function: the next leader fences this transaction, which
	// aborts it.
	if err := p.produce(ctx, records, p.progress(next)); err != nil {
		if failed, is := errors.AsType[*relay.BatchError](err); is { // aborted with the others
			failed.Durable, failed.Ahead = 0, nil
		}
		return errors.Join(err, p.client.EndTransaction(ctx, kgo.TryAbort))
	}

	// Without an answer the outcome is unknown. The next client reads the progress.
	if err := p.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit a Kafka transaction: %w", err)
	}

	return nil
}

// produce sends a batch's records and a record of progress, which may be nil, and waits for all of
// them.
func (p *publisher) produce(ctx context.Context, batch []*kgo.Record, progress *kgo.Record) error {
	records := batch
	if progress != nil {
		records = append(records, progress)
	}

	var wg sync.WaitGroup
	wg.Add(len(records))
	failed := map[*kgo.Record]error{}
	done := func(r *kgo.Record, err error) { // one call at a time
		if err != nil {
			failed[r] = err
		}
		wg.Done()
	}
	for _, r := range records {
		p.client.Produce(ctx, r, done)
	}

	_ = p.client.Flush(ctx) // its error is ctx's, and every record has it, too
	wg.Wait()

	if len(failed) == 0 {
		return nil
	}

	return p.classify(records, failed)
}

// classify returns what the failures of records mean. It is a refusal only if the broker refused
// events and nothing else failed; otherwise it is an outage.
func (p *publisher) classify(records []*kgo.Record, failed map[*kgo.Record]error) error {
	var refused *relay.BatchError
	var outage error
	first := slices.IndexFunc(records, func(r *kgo.Record) bool { return failed[r] != nil })
	for i, r := range records {
		event, err := r.Topic != p.progressTopic, failed[r]
		switch {
		case err == nil && refused != nil && event:
			refused.Ahead = append(refused.Ahead, i)
		case err == nil:
		case event && isAny(err, refusals...):
			if refused == nil {
				refused = &relay.BatchError{Refused: true, Index: i, Durable: first, Err: err}
			}
		case outage == nil:
			outage = p.outageOf(r.Topic, err)
		}
	}

	switch {
	case outage == nil:
		return refused
	case len(failed) < len(records):
		return &relay.BatchError{Durable: first, Err: outage}
	}

	return outage
}

// refusals are of a record for what it is. If it is one of progress, no event is the bad one.
var refusals = []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord}

func (p *publisher) outageOf(topic string, err error) error {
	unusable := []error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.TopicAuthorizationFailed}
	switch changed := p.changed[topic]; {
	case changed != nil: // the reason for which the partitioner refused records
		return &relay.TopicError{Topic: topic, Err: changed}
	case isAny(err, unusable...) || isAny(err, refusals...):
		return &relay.TopicError{Topic: topic, Err: err}
	}
	return fmt.Errorf("produce to %s: %w", topic, err)
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// Close gives up what is not acknowledged.
func (p *publisher) Close() { p.close() }

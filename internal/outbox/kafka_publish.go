package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// keepEvery is how often progress is kept when it need not be kept with every batch. It is a witness then (see term.begin).
const keepEvery = time.Second

type kafkaPublisher struct {
	Kafka
	relay    string
	client   *kgo.Client
	close    func()         // of the client, once: it must not be closed twice at the same time
	maxBytes map[string]int // by topic
	encoder  encoder

	durable Progress // behind the last batch that was acknowledged
	kept    Position // of the progress that was kept last
	keptAt  time.Time
}

// Publish implements Publisher. Records are handed over without waiting in between; one key is one partition, in order.
func (p *kafkaPublisher) Publish(ctx context.Context, batch []Message, next Progress) error {
	err := p.publish(ctx, batch, next)
	if err != nil && ctx.Err() != nil { // the client is closed, which is all that err may say
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

func (p *kafkaPublisher) publish(ctx context.Context, batch []Message, next Progress) error {
	// A record that is on its way would be waited for beyond the end of ctx, for ever if need be: it must not keep a relay from
	// ending its term, or from ending. The client is thrown away after an error, so it may go now.
	defer context.AfterFunc(ctx, p.close)()
	records := p.encoder.records(p.Kafka, batch)
	for i, r := range records {
		if !legalTopic(r.Topic) {
			return &RefusedError{Index: i, Unsent: true, Err: fmt.Errorf("%w: %q", kerr.InvalidTopicException, r.Topic)}
		}
		if size := size(r); size > p.limit(r.Topic) {
			return &RefusedError{Index: i, Unsent: true, Err: fmt.Errorf("%w: %d bytes, topic %s takes %d", kerr.MessageTooLarge, size, r.Topic, p.limit(r.Topic))}
		}
	}
	if p.ExactlyOnce {
		return p.publishOnce(ctx, records, next)
	}
	// Progress is durable when its batch is, not before: the record goes out with the batch behind it, or alone.
	var progress *kgo.Record
	if len(batch) > 0 && time.Since(p.keptAt) > keepEvery && p.durable.Position != p.kept {
		progress = p.progress(p.durable)
		p.kept, p.keptAt = p.durable.Position, time.Now()
	}
	if len(batch) == 0 && next.Position != p.kept {
		progress = p.progress(next)
		p.kept, p.keptAt = next.Position, time.Now()
	}
	if err := p.produce(ctx, records, progress); err != nil {
		return err
	}
	p.durable = next
	return nil
}

// publishOnce puts the batch and next into one Kafka transaction: readers with read_committed see both or neither.
func (p *kafkaPublisher) publishOnce(ctx context.Context, records []*kgo.Record, next Progress) error {
	if len(records) == 0 && next.Position == p.kept {
		return nil
	}
	if err := p.client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin a Kafka transaction: %w", err)
	}
	// Crash point, here and up to the end: the next leader fences this one's transaction, which aborts it.
	if err := p.produce(ctx, records, p.progress(next)); err != nil {
		var refused *RefusedError
		var partial *PartialError
		if errors.As(err, &refused) { // nobody will see those that were taken
			refused.Durable, refused.Ahead = 0, nil
		} else if errors.As(err, &partial) {
			partial.Durable = 0
		}
		return errors.Join(err, p.client.EndTransaction(ctx, kgo.TryAbort))
	}
	// No answer: nobody knows. The client is thrown away, and the next one reads the progress.
	if err := p.client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("commit a Kafka transaction: %w", err)
	}
	// Crash point: committed but the cursor not moved. The next leader begins behind the progress.
	p.kept = next.Position
	return nil
}

// produce sends a batch's records and a record of progress, unless that is nil, and waits for all of them.
func (p *kafkaPublisher) produce(ctx context.Context, batch []*kgo.Record, progress *kgo.Record) error {
	records := batch
	if progress != nil {
		records = append(records, progress)
	}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed map[*kgo.Record]error
	)
	wg.Add(len(records))
	done := func(r *kgo.Record, err error) {
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				failed = map[*kgo.Record]error{}
			}
			failed[r] = err
		}
		wg.Done()
	}
	for _, r := range records {
		p.client.Produce(ctx, r, done)
	}
	_ = p.client.Flush(ctx) // its error is ctx's, and every record has it, too
	wg.Wait()
	var refused *RefusedError
	err := judge(batch, failed)
	if failed[progress] == nil || err != nil && !errors.As(err, &refused) {
		return err
	}
	failure := judge([]*kgo.Record{progress}, failed)
	if errors.As(failure, &refused) { // no event is to blame
		failure = &TopicError{Topic: progress.Topic, Err: refused.Err}
	}
	if err == nil && len(batch) > 0 {
		return &PartialError{Durable: len(batch), Err: failure}
	}
	return failure
}

// judge says what the failures of a batch mean. Only when the broker refused all that failed is there somebody to blame;
// else it is an outage.
func judge(records []*kgo.Record, failed map[*kgo.Record]error) error {
	if len(failed) == 0 {
		return nil
	}
	var refused *RefusedError
	var outage error
	first, taken := slices.IndexFunc(records, func(r *kgo.Record) bool { return failed[r] != nil }), 0
	for i, r := range records {
		err := failed[r]
		switch {
		case err == nil && refused != nil:
			refused.Ahead = append(refused.Ahead, i)
			taken++
		case err == nil:
			taken++
		case refuses(err):
			if refused == nil {
				refused = &RefusedError{Index: i, Durable: first, Err: err}
			}
		case outage != nil:
		case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.TopicAuthorizationFailed):
			outage = &TopicError{Topic: r.Topic, Err: err}
		default:
			outage = fmt.Errorf("produce to %s: %w", r.Topic, err)
		}
	}
	switch {
	case outage != nil && taken > 0:
		return &PartialError{Durable: first, Err: outage}
	case outage != nil:
		return outage
	case refused != nil:
		return refused
	}
	return nil
}

// refuses says whether a broker's error is about the records that it was given.
func refuses(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord)
}

func (p *kafkaPublisher) progress(at Progress) *kgo.Record {
	value, _ := json.Marshal(at) // numbers and strings
	return &kgo.Record{Topic: p.TopicPrefix + progressTopic, Key: []byte(p.relay), Value: value}
}

// readProgress returns what was kept last, nil if nothing was. It writes a mark and reads up to it: so it has read all that
// was there, however the topic was compacted, and the relay has been heard by the broker before it leads.
func (p *kafkaPublisher) readProgress(ctx context.Context) (kept *Progress, err error) {
	topic := p.TopicPrefix + progressTopic
	mark := kgo.Record{Topic: topic, Key: []byte(p.relay + " opened"), Value: []byte(uuid.NewString())}
	if p.ExactlyOnce {
		err = p.client.BeginTransaction()
	}
	if err == nil {
		err = p.produce(ctx, nil, new(mark))
	}
	if err == nil && p.ExactlyOnce {
		// Until it has noted the partitions of a topic that it has just heard of, which may be after the acknowledgement, franz-go
		// takes a transaction with nothing else in it for empty: it aborts it, and reports that it committed. A second record
		// waits until they are noted. Batches are safe from that: each has progress with it, and its topic is known from here on.
		err = p.produce(ctx, nil, new(mark))
	}
	if err == nil && p.ExactlyOnce {
		err = p.client.EndTransaction(ctx, kgo.TryCommit)
	}
	// Not before: a read that finds nothing yet may be held back by the broker for seconds.
	p.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})
	for err == nil {
		fetches := p.client.PollFetches(ctx)
		if err = fetches.Err(); err != nil {
			break
		}
		for _, r := range fetches.Records() {
			switch string(r.Key) {
			case p.relay:
				if kept = nil; r.Value == nil { // somebody has taken it away
					continue
				}
				kept = new(Progress)
				if err := json.Unmarshal(r.Value, kept); err != nil {
					return nil, fmt.Errorf("read progress: offset %d of %s: %w", r.Offset, r.Topic, err)
				}
			case string(mark.Key):
				if string(r.Value) == string(mark.Value) {
					p.client.PurgeTopicsFromConsuming(r.Topic)
					return kept, nil
				}
			}
		}
	}
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		err = &TopicError{Topic: mark.Topic, Err: err}
	}
	return nil, fmt.Errorf("read progress: %w", err)
}

// Ping implements Publisher.
func (p *kafkaPublisher) Ping(ctx context.Context) error { return p.client.Ping(ctx) }

// Close gives up what is not acknowledged.
func (p *kafkaPublisher) Close() { p.close() }

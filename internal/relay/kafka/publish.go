package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
)

// keepEvery is how often progress is kept when it need not be kept with every batch. It is a witness then (see term.begin).
const keepEvery = time.Second

type publisher struct {
	Producer
	name          string
	progressTopic string
	client        *kgo.Client
	close         func()         // of the client, once: it must not be closed twice at the same time
	maxBytes      map[string]int // by topic
	encoder       encoder

	durable relay.Progress // behind the last batch that was acknowledged
	kept    relay.Position // of the progress that was kept last
	keptAt  time.Time
	last    *relay.Progress // what was kept last, by this term or an earlier one

	// By topic, see partitions.go.
	counts  map[string]int32 // with how many partitions its events are sent
	made    map[string]int32 // with how many this term made it
	changed map[string]error // why nothing more is sent to it in this term
}

// Publish implements Publisher. Records are handed over without waiting in between; one key is one partition, in order.
func (p *publisher) Publish(ctx context.Context, batch []relay.Message, next relay.Progress) error {
	err := p.publish(ctx, batch, next)
	if err != nil && ctx.Err() != nil { // the client is closed, which is all that err may say
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

func (p *publisher) publish(ctx context.Context, batch []relay.Message, next relay.Progress) error {
	// A record that is on its way would be waited for beyond the end of ctx, for ever if need be: it must not keep a relay from
	// ending its term, or from ending. The client is thrown away after an error, so it may go now.
	defer context.AfterFunc(ctx, p.close)()
	records := p.encoder.records(p.Producer, batch)
	for i, r := range records {
		if !legalTopic(r.Topic) {
			return &relay.RefusedError{Index: i, Unsent: true, Err: fmt.Errorf("%w: %q", kerr.InvalidTopicException, r.Topic)}
		}
		if size := size(r); size > p.limit(r.Topic) {
			return &relay.RefusedError{Index: i, Unsent: true, Err: fmt.Errorf("%w: %d bytes, topic %s takes %d", kerr.MessageTooLarge, size, r.Topic, p.limit(r.Topic))}
		}
	}
	if err := p.count(ctx, records); err != nil {
		return err
	}
	if p.ExactlyOnce {
		return p.publishOnce(ctx, records, next)
	}
	// Progress is durable when its batch is, not before: the record goes out with the batch behind it, or alone.
	var progress *kgo.Record
	if len(batch) > 0 && time.Since(p.keptAt) > keepEvery && p.durable.Position != p.kept {
		progress = p.progress(new(p.durable))
		p.kept, p.keptAt = p.durable.Position, time.Now()
	}
	if len(batch) == 0 && next.Position != p.kept {
		progress = p.progress(&next)
		p.kept, p.keptAt = next.Position, time.Now()
	}
	if err := p.produce(ctx, records, progress); err != nil {
		return err
	}
	p.durable = next
	return nil
}

// publishOnce puts the batch and next into one Kafka transaction: readers with read_committed see both or neither.
func (p *publisher) publishOnce(ctx context.Context, records []*kgo.Record, next relay.Progress) error {
	if len(records) == 0 && next.Position == p.kept {
		return nil
	}
	if err := p.transact(ctx, records, &next); err != nil {
		return err
	}
	// Crash point: committed but the cursor not moved. The next leader begins behind the progress.
	p.kept = next.Position
	return nil
}

// transact sends records and progress in one Kafka transaction.
func (p *publisher) transact(ctx context.Context, records []*kgo.Record, next *relay.Progress) error {
	if err := p.client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin a Kafka transaction: %w", err)
	}
	// Crash point, here and up to the end: the next leader fences this one's transaction, which aborts it.
	if err := p.produce(ctx, records, p.progress(next)); err != nil {
		var refused *relay.RefusedError
		var partial *relay.PartialError
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
	return nil
}

// produce sends a batch's records and a record of progress, unless that is nil, and waits for all of them.
func (p *publisher) produce(ctx context.Context, batch []*kgo.Record, progress *kgo.Record) error {
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
	for r := range failed {
		if changed := p.changed[r.Topic]; changed != nil { // what the client says of it has no name
			failed[r] = changed
		}
	}
	var refused *relay.RefusedError
	err := judge(batch, failed)
	if failed[progress] == nil || err != nil && !errors.As(err, &refused) {
		return err
	}
	failure := judge([]*kgo.Record{progress}, failed)
	if errors.As(failure, &refused) { // no event is to blame
		failure = &relay.TopicError{Topic: progress.Topic, Err: refused.Err}
	}
	if err == nil && len(batch) > 0 {
		return &relay.PartialError{Durable: len(batch), Err: failure}
	}
	return failure
}

// judge says what the failures of a batch mean. Only when the broker refused all that failed is there somebody to blame;
// else it is an outage.
func judge(records []*kgo.Record, failed map[*kgo.Record]error) error {
	if len(failed) == 0 {
		return nil
	}
	var refused *relay.RefusedError
	var outage error
	var changed *relay.PartitionsError
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
				refused = &relay.RefusedError{Index: i, Durable: first, Err: err}
			}
		case outage != nil:
		case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.TopicAuthorizationFailed),
			errors.As(err, &changed):
			outage = &relay.TopicError{Topic: r.Topic, Err: err}
		default:
			outage = fmt.Errorf("produce to %s: %w", r.Topic, err)
		}
	}
	switch {
	case outage != nil && taken > 0:
		return &relay.PartialError{Durable: first, Err: outage}
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

// keptProgress is what a record of progress holds.
type keptProgress struct {
	*relay.Progress                  // nil: the first events are about to be sent
	Partitions      map[string]int32 `json:"partitions,omitempty"` // of topics that events were sent to
}

func (p *publisher) progress(at *relay.Progress) *kgo.Record {
	p.last = at
	value, _ := json.Marshal(keptProgress{at, p.counts}) // numbers and strings
	return &kgo.Record{Topic: p.progressTopic, Key: []byte(p.name), Value: value}
}

// firstWindow is how far back progress is looked for first. It is the last thing a term leaves, but for the few records of
// terms that came to nothing.
const firstWindow = 64

// readProgress returns what was kept last, nil if nothing was. It reads from the end, in windows that grow: a transaction
// leaves a marker that compaction keeps for a day, so what lies before may be millions of offsets.
func (p *publisher) readProgress(ctx context.Context, admin *kadm.Client) (*relay.Progress, error) {
	end, err := p.mark(ctx)
	if err != nil {
		return nil, p.unreadable(err)
	}
	starts, err := admin.ListStartOffsets(ctx, p.progressTopic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, p.unreadable(err)
	}

	start, _ := starts.Lookup(p.progressTopic, 0)
	for window := int64(firstWindow); ; window *= 16 {
		from := max(start.Offset, end-window)
		record, err := p.readLast(ctx, from, end)
		switch {
		case err != nil:
			return nil, p.unreadable(err)
		case record == nil && from > start.Offset:
			continue
		case record == nil || record.Value == nil: // nothing yet, or somebody has taken it away
			return nil, nil
		}

		kept := keptProgress{Partitions: p.counts}
		if err := json.Unmarshal(record.Value, &kept); err != nil {
			return nil, fmt.Errorf("read progress: offset %d of %s: %w", record.Offset, record.Topic, err)
		}
		p.last = kept.Progress
		return kept.Progress, nil
	}
}

// mark writes a record and returns its offset. So the relay has been heard by the broker before it leads, and a read up to
// here has seen all that was there, however the topic was compacted.
func (p *publisher) mark(ctx context.Context) (offset int64, err error) {
	mark := kgo.Record{Topic: p.progressTopic, Key: []byte(p.name + " opened"), Value: []byte("opened")}
	if p.ExactlyOnce {
		// Until it has noted the partitions of a topic that it has just heard of, which may be after the acknowledgement, franz-go
		// takes a transaction with nothing else in it for empty: it aborts it, and reports that it committed. A second record
		// waits until they are noted. Batches are safe from that: each has progress with it, and its topic is known from here on.
		if err := p.client.BeginTransaction(); err != nil {
			return 0, err
		}
		if err := p.produce(ctx, nil, new(mark)); err != nil {
			return 0, err
		}
	}
	if err := p.produce(ctx, nil, &mark); err != nil {
		return 0, err
	}
	if p.ExactlyOnce {
		err = p.client.EndTransaction(ctx, kgo.TryCommit)
	}
	return mark.Offset, err
}

// readLast returns the last record of progress at from or behind it, up to the mark at end; nil if there is none. The mark
// is there to be read, whatever markers and gaps lie before it. If the log's start has moved beyond from, reading begins there.
func (p *publisher) readLast(ctx context.Context, from, end int64) (last *kgo.Record, err error) {
	// Only when the mark is written: a read that finds nothing yet may be held back by the broker for seconds.
	at := kgo.NewOffset().At(from)
	p.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{p.progressTopic: {0: at}})
	defer p.client.PurgeTopicsFromConsuming(p.progressTopic)
	for {
		fetches := p.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for _, r := range fetches.Records() {
			if r.Offset >= end {
				return last, nil
			}
			if string(r.Key) == p.name {
				last = r
			}
		}
	}
}

func (p *publisher) unreadable(err error) error {
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		err = &relay.TopicError{Topic: p.progressTopic, Err: err}
	}
	return fmt.Errorf("read progress: %w", err)
}

// Close gives up what is not acknowledged.
func (p *publisher) Close() { p.close() }

package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
)

const (
	// How often progress is kept with at-least-once. The next term sends again what came after it.
	keepEvery = time.Second
	// How many records from the end progress is looked for first. Failed terms leave a few marks
	// behind it.
	firstWindow = 64
)

// keptProgress is what a record of progress holds.
type keptProgress struct {
	*relay.Progress                  // nil: the first events are about to be sent
	Partitions      map[string]int32 `json:"partitions,omitempty"` // of each topic
}

// progress makes a record of at, which becomes what was kept last.
func (p *publisher) progress(at *relay.Progress) *kgo.Record {
	p.last = at
	value, _ := json.Marshal(keptProgress{at, p.counts}) // numbers and strings
	return &kgo.Record{Topic: p.progressTopic, Key: []byte(p.key), Value: value}
}

// keep keeps progress without a batch.
func (p *publisher) keep(ctx context.Context, at *relay.Progress) error {
	if p.ExactlyOnce {
		return p.transact(ctx, nil, at)
	}
	return p.produce(ctx, nil, p.progress(at))
}

// readProgress returns what was kept last, or nil. It reads from the end, in windows that grow: a
// transaction leaves a marker that compaction keeps for a day, so there may be millions of offsets
// before.
func (p *publisher) readProgress(ctx context.Context) (*relay.Progress, error) {
	end, err := p.mark(ctx)
	if err != nil {
		return nil, err
	}

	// A window without progress is followed by a larger one.
	for window := int64(firstWindow); ; window *= 16 {
		from := max(0, end-window)
		record, err := p.readLast(ctx, from, end)
		switch {
		case err != nil:
			return nil, err
		case record == nil && from > 0:
			continue
		case record == nil || record.Value == nil: // nothing was kept, or it was deleted
			return nil, nil
		}

		kept := keptProgress{Partitions: p.counts}
		if err := json.Unmarshal(record.Value, &kept); err != nil {
			return nil, fmt.Errorf("offset %d of %s: %w", record.Offset, record.Topic, err)
		}
		p.last = kept.Progress
		return kept.Progress, nil
	}
}

// mark writes a record and returns its offset. The broker accepts this client then, and a read up
// to the mark sees all that was there, however the topic was compacted.
func (p *publisher) mark(ctx context.Context) (offset int64, err error) {
	key := []byte(p.key + " opened")
	mark := kgo.Record{Topic: p.progressTopic, Key: key, Value: []byte("opened")}
	if p.ExactlyOnce {
		if err := p.client.BeginTransaction(); err != nil {
			return 0, err
		}
		// A new topic's partitions may be noted only after the acknowledgement. Until then franz-go
		// takes the transaction for empty: it aborts it and reports a commit. A second record waits
		// for that. Batches are safe: each has progress with it, whose topic is known from here on.
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

// readLast returns the last record of progress from offset from up to the mark at end, or nil. The
// mark is always there to be read. If the log begins behind from, reading begins there.
func (p *publisher) readLast(ctx context.Context, from, end int64) (last *kgo.Record, err error) {
	// Consume only now: the broker may hold back a read that finds nothing yet for seconds.
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
			if string(r.Key) == p.key {
				last = r
			}
		}
	}
}

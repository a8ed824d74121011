package kafka

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
)

// Resender sends events that a relay has sent before, as the same records to the same partitions.
// It has no transactional id, keeps no progress and makes no topic, so the relay beside it is never
// fenced.
type Resender struct{ p *publisher }

// OpenResender connects. With exactly-once events are sent again without a transaction: what was in
// one is committed already.
func (k Producer) OpenResender(ctx context.Context) (*Resender, error) {
	k.ExactlyOnce = false
	p := &publisher{
		Producer: k, maxBytes: map[string]int{}, counts: map[string]int32{},
		changed: map[string]error{},
	}

	var err error
	if p.client, err = k.newClient(p.producing()...); err != nil {
		return nil, err
	}
	p.close = sync.OnceFunc(p.client.Close)

	stillOpen := context.AfterFunc(ctx, p.close) // as in Open
	err = p.client.Ping(ctx)
	var topics []string
	for _, t := range k.Topics {
		topics = append(topics, k.TopicPrefix+t)
	}
	p.readLimits(ctx, kadm.NewClient(p.client), topics)
	if !stillOpen() {
		return nil, fmt.Errorf("open Kafka: %w", context.Cause(ctx))
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open Kafka: %w", err)
	}

	return &Resender{p}, nil
}

// Send sends messages and waits until all are durable. Its errors are those of
// relay.Publisher.Publish, and likewise it is not used after one that is not Unsent.
func (r *Resender) Send(ctx context.Context, batch []relay.Message) (err error) {
	defer func() {
		if err != nil && ctx.Err() != nil { // as in Publish
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}()
	defer context.AfterFunc(ctx, r.p.close)()

	records := r.p.encoder.records(r.p.Producer, batch)
	if err := r.p.check(records); err != nil {
		return err
	}
	if err := r.count(ctx, records); err != nil {
		return err
	}

	return r.p.produce(ctx, records, nil)
}

// count asks once how many partitions each topic has. If that changes while events are sent, the
// partitioner refuses: an aggregate's events would be on two partitions.
func (r *Resender) count(ctx context.Context, batch []*kgo.Record) error {
	fresh := map[string]bool{}
	for _, record := range batch {
		if r.p.counts[record.Topic] == 0 {
			fresh[record.Topic] = true
		}
	}

	now, forbidden, err := r.p.countPartitions(ctx, maps.Keys(fresh))
	switch {
	case err != nil:
		return err
	case forbidden != "":
		return &relay.TopicError{Topic: forbidden, Err: kerr.TopicAuthorizationFailed}
	}

	for topic := range fresh {
		if now[topic] == 0 {
			return &relay.TopicError{Topic: topic, Err: kerr.UnknownTopicOrPartition}
		}
		r.p.counts[topic] = now[topic]
	}
	return nil
}

// Close gives up what is not acknowledged.
func (r *Resender) Close() { r.p.close() }

package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay"
)

// An aggregate's events are in order because its key is always on one partition, which depends on how many the topic has. So
// that number is kept, beside the progress, for each topic that events were sent to, and nothing is sent with another one until
// the operator has said so: before, the events of a partition that was read slowly could be overtaken by later ones.

// count notes how many partitions the topics of a batch have that no event was sent to before. It is kept before the batch
// goes out, or with it.
func (p *publisher) count(ctx context.Context, batch []*kgo.Record) error {
	fresh := map[string]int32{}
	for _, r := range batch {
		if p.counts[r.Topic] == 0 {
			fresh[r.Topic] = 0
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if err := p.countPartitions(ctx, fresh); err != nil {
		return err
	}

	added := false
	for topic, n := range fresh {
		if n == 0 { // missing, which sending says, or made a moment ago
			n = p.made[topic]
		}
		if n > 0 {
			p.counts[topic], added = n, true
		}
	}
	if !added || p.ExactlyOnce { // progress is in the batch's own transaction
		return nil
	}
	return p.produce(ctx, nil, p.progress(p.last))
}

// compareCounts returns a PartitionsError if a topic has other partitions than its events were sent with. To drain is to go on
// in the next term: at the beginning of one, nothing is on its way.
func (p *publisher) compareCounts(ctx context.Context) error {
	now := map[string]int32{}
	for topic := range p.counts {
		now[topic] = 0
	}
	if len(now) == 0 {
		return nil
	}
	if err := p.countPartitions(ctx, now); err != nil {
		return err
	}

	for topic, n := range now {
		sent := p.counts[topic]
		if n == 0 || n == sent { // a topic that is missing now is for the next event to find
			continue
		}
		changed := &relay.PartitionsError{Topic: topic, Sent: sent, Now: n, GoingOn: p.DrainOnPartitionChange}
		if p.DrainOnPartitionChange {
			p.counts[topic] = n
			if err := p.keepAlone(ctx, p.last); err != nil {
				return err
			}
		}
		// Drained or not, the term ends: so the change is in log and metrics.
		return &relay.TopicError{Topic: topic, Err: changed}
	}
	return nil
}

// keepAlone keeps progress without a batch.
func (p *publisher) keepAlone(ctx context.Context, at *relay.Progress) error {
	if p.ExactlyOnce {
		return p.transact(ctx, nil, at)
	}
	return p.produce(ctx, nil, p.progress(at))
}

// countPartitions asks for the partitions of each topic in counts. Those that are missing or forbidden stay 0.
func (p *publisher) countPartitions(ctx context.Context, counts map[string]int32) error {
	request := kmsg.NewPtrMetadataRequest()
	for name := range counts {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		request.Topics = append(request.Topics, topic)
	}
	answer, err := request.RequestWith(ctx, p.client)
	if err != nil {
		return fmt.Errorf("count partitions: %w", err)
	}
	for _, topic := range answer.Topics {
		if topic.ErrorCode == 0 && topic.Topic != nil {
			counts[*topic.Topic] = int32(len(topic.Partitions))
		}
	}
	return nil
}

// partitioner keeps the key on its partition, and progress on the one that is read.
type partitioner struct {
	kgo.Partitioner
	publisher *publisher
}

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if topic == p.publisher.progressTopic {
		return kgo.ManualPartitioner().ForTopic(topic) // a record's own: the first
	}
	return &topicPartitioner{p.Partitioner.ForTopic(topic), topic, p.publisher}
}

type topicPartitioner struct {
	kgo.TopicPartitioner
	topic     string
	publisher *publisher
}

// Partition is told how many partitions the client knows of at this moment. It refuses every record from the first one on that
// would be sent with another number: should the client hear the old one again, later events must not pass those that failed.
func (t *topicPartitioner) Partition(r *kgo.Record, n int) int {
	const none = -1
	p := t.publisher
	sent := p.counts[t.topic]
	switch {
	case p.changed[t.topic] != nil:
		return none
	case sent == 0: // it was made since count asked
		p.changed[t.topic] = kerr.UnknownTopicOrPartition
		return none
	case int(sent) != n:
		p.changed[t.topic] = &relay.PartitionsError{Topic: t.topic, Sent: sent, Now: int32(n)}
		return none
	}
	return t.TopicPartitioner.Partition(r, n)
}

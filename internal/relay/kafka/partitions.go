package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay"
)

// An aggregate's events are in order because its key is always on one partition, which depends on
// how many the topic has. So that number is kept with the progress, for each topic that events were
// sent to. With another number, later events could overtake those on a partition that is read
// slowly: the operator decides.

// count notes the partitions of the batch's topics that have no events yet, before the batch is
// sent or with it.
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
		if n == 0 { // missing, which sending will tell, or made a moment ago
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

// compareCounts returns a PartitionsError if a topic has other partitions than its events were sent
// with. Draining means to go on in the next term: when it begins, nothing is on its way.
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
		if n == 0 || n == sent { // the next event will find a missing topic
			continue
		}
		drain := p.DrainOnPartitionChange
		changed := &relay.PartitionsError{Topic: topic, Sent: sent, Now: n, GoingOn: drain}
		if drain {
			p.counts[topic] = n
			if err := p.keep(ctx, p.last); err != nil {
				return err
			}
		}
		// Drained or not, the term ends, so that log and metrics show the change.
		return &relay.TopicError{Topic: topic, Err: changed}
	}

	return nil
}

// countPartitions fills in the partitions of each topic in counts. Missing or forbidden ones stay
// 0.
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

// partitioner keeps a key on its partition, and progress on the one that is read.
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

// Partition is called with the number of partitions that the client knows now. From the first
// record with another number than before it refuses all: the client may hear the old number again,
// and later events must not pass those that failed.
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

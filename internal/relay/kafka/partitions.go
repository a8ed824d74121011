package kafka

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"

	"github.com/twmb/franz-go/pkg/kadm"
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
	// Almost always all topics have a number, and nothing is asked.
	fresh, topic := map[string]bool{}, ""
	for _, r := range batch {
		if r.Topic != topic && p.counts[r.Topic] == 0 {
			fresh[r.Topic] = true
		}
		topic = r.Topic
	}

	now, _, err := p.countPartitions(ctx, maps.Keys(fresh))
	if err != nil {
		return err
	}

	added := false
	for topic := range fresh {
		// Without a number it is missing, which sending will tell, or made a moment ago.
		if n := cmp.Or(now[topic], p.made[topic]); n > 0 {
			p.counts[topic], added = n, true
		}
	}

	if !added || p.ExactlyOnce { // progress is in the batch's own transaction
		return nil
	}

	return p.produce(ctx, nil, p.progress(p.last))
}

// compareCounts returns a PartitionsError if a topic has other partitions than its events were sent
// with. Draining means to go on in the next term: when it begins, nothing is on its way. Partitions
// never become fewer: a lower number is an old answer, or of a topic that was made again.
func (p *publisher) compareCounts(ctx context.Context) error {
	now, _, err := p.countPartitions(ctx, maps.Keys(p.counts))
	if err != nil {
		return err
	}

	for topic, n := range now {
		sent := p.counts[topic]
		if n == sent {
			continue
		}
		// The number was noted before the first event, which may never have been sent.
		empty, err := p.isEmpty(ctx, topic)
		switch {
		case err != nil:
			return err
		case empty && n > sent: // the first event notes the number again
			delete(p.counts, topic)
			continue
		}

		drain := p.DrainOnPartitionChange && n > sent
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

// isEmpty reports whether nothing was ever sent to a topic.
func (p *publisher) isEmpty(ctx context.Context, topic string) (bool, error) {
	ends, err := kadm.NewClient(p.client).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return false, fmt.Errorf("look for events in %s: %w", topic, err)
	}

	empty := true
	ends.Each(func(end kadm.ListedOffset) { empty = empty && end.Offset == 0 })
	return empty, nil
}

// countPartitions returns the partitions of each topic that is there, and one that this relay may
// not use.
func (p *publisher) countPartitions(
	ctx context.Context, topics iter.Seq[string],
) (counts map[string]int32, forbidden string, err error) {
	// Asked directly: the client's own knowledge may be as old as metadataMaxAge.
	request := kmsg.NewPtrMetadataRequest()
	for name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		request.Topics = append(request.Topics, topic)
	}
	if request.Topics == nil { // would be all
		return nil, "", nil
	}

	answer, err := request.RequestWith(ctx, p.client)
	if err != nil {
		return nil, "", fmt.Errorf("count partitions: %w", err)
	}

	counts = map[string]int32{}
	for _, t := range answer.Topics {
		switch t.ErrorCode {
		case 0:
			counts[*t.Topic] = int32(len(t.Partitions))
		case kerr.TopicAuthorizationFailed.Code:
			forbidden = *t.Topic
		}
	}

	return counts, forbidden, nil
}

// partition returns how records of a topic find their partition: progress goes to the one that is
// read, an event to that of its key. What is returned is called with the number of partitions that
// the client knows now. From the first record with another number than before it refuses all: the
// client may hear the old number again, and later events must not pass those that failed.
func (p *publisher) partition(topic string) func(*kgo.Record, int) int {
	byKey := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	return func(r *kgo.Record, n int) int {
		const none = -1
		sent := p.counts[topic]
		switch {
		case topic == p.progressTopic:
			return 0
		case p.changed[topic] != nil:
			return none
		case sent == 0: // it was made since count asked
			p.changed[topic] = kerr.UnknownTopicOrPartition
			return none
		case int(sent) != n:
			p.changed[topic] = &relay.PartitionsError{Topic: topic, Sent: sent, Now: int32(n)}
			return none
		}

		return byKey.Partition(r, n)
	}
}

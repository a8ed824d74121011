package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// copies watches how many copies Kafka keeps of what it acknowledges. Every relay does, leader or
// not: a promise that is too small does no harm until a broker is lost, and then it is too late.
type copies struct {
	producer kafka.Producer
	relay    string
	wanted   int // 0: defaultCopies
	metrics  *telemetry.Relay
	log      *slog.Logger
	said     map[string]kafka.Copies // what the log has said last, by topic
}

const (
	// One broker may be lost with its disk, and every acknowledged event is still there.
	defaultCopies = 2

	copiesEvery   = time.Minute     // how soon a change by an operator shows
	copiesRetry   = 2 * time.Second // a new relay's topics are not there yet
	copiesTimeout = 10 * time.Second
)

func (c *copies) run(ctx context.Context) error {
	c.metrics.CopiesWanted(cmp.Or(c.wanted, defaultCopies))

	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			wait := copiesEvery
			if !c.measure(ctx) {
				wait = copiesRetry
			}
			next.Reset(wait)
		}
	}
}

// measure shows the copies of each topic, and reports whether all topics are there. It logs nothing
// when Kafka is away: the relay does.
func (c *copies) measure(ctx context.Context) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, copiesTimeout)
	defer cancel()

	topics, err := c.producer.Copies(ctx, c.relay)
	if err != nil {
		c.metrics.NoCopies()
		return false
	}

	done = true
	for _, topic := range topics {
		if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
			done = false // the leader makes it, or says that it may not
		}
		if topic.Err != nil {
			c.metrics.NoCopies(topic.Topic)
		} else {
			c.metrics.Copies(topic.Topic, topic.Certain())
		}

		c.report(ctx, topic)
	}

	return done
}

// report logs once what an operator should know of a topic, and again when it has changed.
func (c *copies) report(ctx context.Context, topic kafka.Copies) {
	if c.said[topic.Topic] == topic {
		return
	}
	c.said[topic.Topic] = topic

	wanted := cmp.Or(c.wanted, defaultCopies)
	switch {
	case errors.Is(topic.Err, kerr.UnknownTopicOrPartition):
	case topic.Err != nil:
		c.log.WarnContext(ctx, "copies of a topic not measured: is DescribeConfigs allowed?",
			"topic", topic.Topic, "error", topic.Err)
	case topic.Certain() < wanted:
		c.log.WarnContext(ctx, "a topic keeps fewer copies of acknowledged events than wanted: "+
			`see "Copies in Kafka" in docs/operating.md`, "topic", topic.Topic,
			"copies", topic.Certain(), "wanted", wanted,
			"replicas", topic.Replicas, "min_insync_replicas", topic.MinInsync)
	case topic.Replicas < c.producer.Replication:
		c.log.WarnContext(ctx, "a topic has fewer replicas than TOPIC_REPLICATION, which is only for "+
			"topics that are made", "topic", topic.Topic, "replicas", topic.Replicas)
	}
}

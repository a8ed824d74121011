package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const minInsync = "min.insync.replicas"

var errNoMinInsync = errors.New("the broker does not say its " + minInsync)

// Copies says how many copies of its records a topic keeps.
type Copies struct {
	Topic     string
	Replicas  int   // of the partition that has the fewest
	MinInsync int   // with fewer replicas in sync the broker takes no record
	Err       error // why it is unknown: the topic is missing, or the relay may not ask (kerr)
}

// Certain returns how many copies an acknowledged record has at least; 0: unknown. acks=all waits
// for the replicas that are in sync, which may be the leader alone: only min.insync.replicas
// promises more.
func (c Copies) Certain() int { return min(c.Replicas, c.MinInsync) }

// Copies asks for the copies of Topics and of the progress of that relay, over a connection of its
// own. The error says that no broker answered; what is unknown of one topic is in its Err.
func (k Producer) Copies(ctx context.Context, relay string) (all []Copies, err error) {
	for _, t := range k.Topics {
		all = append(all, Copies{Topic: k.TopicPrefix + t})
	}
	all = append(all, Copies{Topic: k.TopicPrefix + progressTopics + relay})

	err = k.ask(ctx, func(client *kgo.Client) error {
		if err := readReplicas(ctx, client, all); err != nil {
			return err
		}
		return readMinInsync(ctx, client, all)
	})
	if err != nil {
		return nil, fmt.Errorf("ask for the topics' copies: %w", err)
	}

	return all, nil
}

// readReplicas does not use kadm, which fails as a whole if one topic is forbidden.
func readReplicas(ctx context.Context, client *kgo.Client, all []Copies) error {
	request := kmsg.NewPtrMetadataRequest()
	for _, c := range all {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(c.Topic)
		request.Topics = append(request.Topics, topic)
	}

	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}

	for _, t := range answer.Topics {
		for i := range all {
			c := &all[i]
			if t.Topic == nil || *t.Topic != c.Topic {
				continue
			}

			c.Err = kerr.ErrorForCode(t.ErrorCode)
			for n, p := range t.Partitions {
				if replicas := len(p.Replicas); n == 0 || replicas < c.Replicas {
					c.Replicas = replicas
				}
			}
		}
	}

	return nil
}

// readMinInsync is apart from readReplicas because it needs a right of its own, DescribeConfigs.
func readMinInsync(ctx context.Context, client *kgo.Client, all []Copies) error {
	request := kmsg.NewPtrDescribeConfigsRequest()
	for _, c := range all {
		topic := kmsg.NewDescribeConfigsRequestResource()
		topic.ResourceType, topic.ResourceName = kmsg.ConfigResourceTypeTopic, c.Topic
		topic.ConfigNames = []string{minInsync}
		request.Resources = append(request.Resources, topic)
	}

	answer, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}

	for _, t := range answer.Resources {
		for i := range all {
			c := &all[i]
			if t.ResourceName != c.Topic || c.Err != nil {
				continue
			}

			c.Err = kerr.ErrorForCode(t.ErrorCode)
			for _, setting := range t.Configs {
				if setting.Name == minInsync && setting.Value != nil {
					c.MinInsync, _ = strconv.Atoi(*setting.Value)
				}
			}
			if c.MinInsync == 0 {
				c.Err = cmp.Or(c.Err, errNoMinInsync)
			}
		}
	}

	return nil
}

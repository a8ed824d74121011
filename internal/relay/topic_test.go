package relay_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
)

// forbidProduce and forbidFetch answer as a broker does that refuses it to the relay by its ACLs.
func forbidProduce(r kmsg.Request) kmsg.Response {
	request, response := r.(*kmsg.ProduceRequest), r.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range request.Topics {
		topic := kmsg.ProduceResponseTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			topic.Partitions = append(topic.Partitions, kmsg.ProduceResponseTopicPartition{Partition: p.Partition, ErrorCode: kerr.TopicAuthorizationFailed.Code})
		}
		response.Topics = append(response.Topics, topic)
	}
	return response
}

func forbidFetch(r kmsg.Request) kmsg.Response {
	request, response := r.(*kmsg.FetchRequest), r.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range request.Topics {
		topic := kmsg.FetchResponseTopic{Topic: t.Topic, TopicID: t.TopicID}
		for _, p := range t.Partitions {
			partition := kmsg.NewFetchResponseTopicPartition() // no other replica is preferred
			partition.Partition, partition.ErrorCode = p.Partition, kerr.TopicAuthorizationFailed.Code
			topic.Partitions = append(topic.Partitions, partition)
		}
		response.Topics = append(response.Topics, topic)
	}
	return response
}

func TestForbiddenTopicIsNamedAndWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key    kmsg.Key
		forbid func(kmsg.Request) kmsg.Response
	}{
		"to write progress to":  {kmsg.Produce, forbidProduce},
		"to read progress from": {kmsg.Fetch, forbidFetch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			var allowed atomic.Bool
			cluster.ControlKey(c.key.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				if allowed.Load() {
					return nil, nil, false
				}
				return c.forbid(r), nil, true
			})
			d := newDatabase(t)
			kafka := kafka.Producer{Brokers: cluster.ListenAddrs(), TopicPrefix: "x.", Topics: []string{"things"}, Source: "/test"}
			published := make(chan []relay.Message, 10)
			r := start(t, d.relay, kafka.Open, func(r *relay.Relay) {
				r.OnPublish = func(events []relay.Message, _ time.Duration) { published <- events }
			})
			d.commit(t, "a")
			var topic *relay.TopicError
			if err := next(t, r.errors, "the end of a term"); !errors.As(err, &topic) || topic.Topic != "x.relay-progress.main" {
				t.Errorf("OnError was told %v, want a TopicError of x.relay-progress.main.main", err)
			}
			allowed.Store(true)
			if got := next(t, published, "the event"); len(got) != 1 {
				t.Errorf("%d events were sent, want 1", len(got))
			}
		})
	}
}

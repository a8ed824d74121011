package relay_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
)

// threeBrokers is a cluster whose topics can have three copies.
func threeBrokers(t testing.TB) (*kfake.Cluster, kafka.Producer, *kadm.Client) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	k := kafka.Producer{Brokers: cluster.ListenAddrs(), TopicPrefix: "shop.", Topics: []string{"things"}}
	return cluster, k, kadm.NewClient(client(t, k.Brokers))
}

func TestTopicsAreMadeAsConfigured(t *testing.T) {
	t.Parallel()
	type made struct {
		Partitions  int32
		Replication int16
		Settings    map[string]string
	}
	compacted := func(more map[string]string) map[string]string {
		all := map[string]string{"cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.1"}
		for name, value := range more {
			all[name] = value
		}
		return all
	}
	two := map[string]string{"min.insync.replicas": "2"}
	for name, c := range map[string]struct {
		configure func(*kafka.Producer)
		want      map[string]made
	}{
		"by default": {func(*kafka.Producer) {}, map[string]made{
			"shop.things":              {12, -1, map[string]string{}},
			"shop.relay-progress.main": {1, -1, compacted(nil)},
		}},
		"as configured": {func(k *kafka.Producer) { k.Partitions, k.Replication, k.MinInsync = 6, 3, 2 }, map[string]made{
			"shop.things":              {6, 3, two},
			"shop.relay-progress.main": {1, 3, compacted(two)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, k, _ := threeBrokers(t)
			var mu sync.Mutex
			got := map[string]made{}
			cluster.ControlKey(int16(kmsg.CreateTopics), func(r kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				mu.Lock()
				defer mu.Unlock()
				for _, topic := range r.(*kmsg.CreateTopicsRequest).Topics {
					m := made{topic.NumPartitions, topic.ReplicationFactor, map[string]string{}}
					for _, s := range topic.Configs {
						m.Settings[s.Name] = *s.Value
					}
					got[topic.Topic] = m
				}
				return nil, nil, false
			})

			c.configure(&k)
			open(t, k)
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMoreReplicasThanBrokers: the log and the alarm name the topic that could not be made.
func TestMoreReplicasThanBrokers(t *testing.T) {
	t.Parallel()
	_, k, _ := threeBrokers(t)
	k.Replication = 4
	_, _, err := k.Open(t.Context(), "main", "")
	if unusable := new(relay.TopicError); !errors.As(err, &unusable) || !errors.Is(err, kerr.InvalidReplicationFactor) {
		t.Errorf("%v, want a TopicError", err)
	}
}

func TestCopiesOfAnAcknowledgedEvent(t *testing.T) {
	t.Parallel()
	cluster, k, admin := threeBrokers(t)
	for topic, c := range map[string]struct {
		replicas int16
		insync   *string
	}{
		"default": {3, nil}, "safe": {3, kadm.StringPtr("2")}, "unwritable": {1, kadm.StringPtr("2")}, "secret": {3, kadm.StringPtr("2")},
	} {
		settings := map[string]*string{}
		if c.insync != nil {
			settings["min.insync.replicas"] = c.insync
		}
		if _, err := admin.CreateTopic(t.Context(), 4, c.replicas, settings, k.TopicPrefix+topic); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: "shop.secret", Err: kerr.TopicAuthorizationFailed})

	k.Topics = []string{"default", "safe", "unwritable", "secret"}
	got, err := k.Copies(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	want := []kafka.Copies{
		{Topic: "shop.default", Replicas: 3, MinInsync: 1},
		{Topic: "shop.safe", Replicas: 3, MinInsync: 2},
		{Topic: "shop.unwritable", Replicas: 1, MinInsync: 2},
		{Topic: "shop.secret", Replicas: 3, Err: kerr.TopicAuthorizationFailed},
		{Topic: "shop.relay-progress.main", Err: kerr.UnknownTopicOrPartition},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i, certain := range []int{1, 2, 1, 0, 0} {
		if got[i].Certain() != certain {
			t.Errorf("%s: %d copies are certain, want %d", got[i].Topic, got[i].Certain(), certain)
		}
	}

	cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got, err := k.Copies(ctx, "main"); err == nil {
		t.Errorf("without a broker: %v", got)
	}
}

package relay_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// fastMetadata makes a client hear of changes soon, and wait as long for a topic that was just made as
// others do, or longer: Apache Kafka agrees before it knows.
var fastMetadata = []kgo.Opt{
	kgo.MetadataMinAge(20 * time.Millisecond), kgo.MetadataMaxAge(50 * time.Millisecond), kgo.UnknownTopicRetries(100),
}

// topicOf makes the topic of things with one partition, and returns what sends to it. It hears of changes soon.
func topicOf(t testing.TB, exactlyOnce bool) (k kafka.Producer, topic string) {
	t.Helper()
	k = kafka.Producer{Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t), ExactlyOnce: exactlyOnce,
		Options: fastMetadata}
	topic = k.TopicPrefix + "things"
	if _, err := kadm.NewClient(client(t, k.Brokers)).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	return k, topic
}

// grow gives a topic more partitions, and returns when the broker says so.
func grow(t testing.TB, k kafka.Producer, topic string, to int) {
	t.Helper()
	admin := kadm.NewClient(client(t, k.Brokers))
	answers, err := admin.UpdatePartitions(t.Context(), to, topic)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error {
		there, err := admin.ListTopics(t.Context(), topic)
		if n := len(there[topic].Partitions); err == nil && n != to {
			err = fmt.Errorf("%d partitions", n)
		}
		return err
	})
}

// wantChange fails unless err names the topic and both numbers.
func wantChange(t testing.TB, err error, want relay.PartitionsError) {
	t.Helper()
	var topic *relay.TopicError
	var got *relay.PartitionsError
	if !errors.As(err, &topic) || topic.Topic != want.Topic || !errors.As(err, &got) {
		t.Fatalf("%v, want a PartitionsError in a TopicError of %s", err, want.Topic)
	}
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func eachDelivery(t *testing.T, test func(t *testing.T, exactlyOnce bool)) {
	for _, exactlyOnce := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once %t", exactlyOnce), func(t *testing.T) {
			t.Parallel()
			test(t, exactlyOnce)
		})
	}
}

func TestNewPartitionsAreRefusedWhileSending(t *testing.T) {
	t.Parallel()
	eachDelivery(t, func(t *testing.T, exactlyOnce bool) {
		k, topic := topicOf(t, exactlyOnce)
		p, _ := open(t, k)
		if err := p.Publish(t.Context(), things("a", "b", "c", "d"), behind(1)); err != nil {
			t.Fatal(err)
		}

		grow(t, k, topic, 8)
		var failed error
		var batches int64 = 1
		testenv.Eventually(t, soon, func() error { // the client goes on with the old number until it hears of the new one
			batches++
			failed = p.Publish(t.Context(), things("a", "b", "c", "d"), behind(batches))
			if failed == nil {
				return errors.New("no error")
			}
			return nil
		})
		wantChange(t, failed, relay.PartitionsError{Topic: topic, Sent: 1, Now: 8})
		for _, r := range readTopic(t, k.Brokers, topic, kgo.ReadUncommitted()) {
			if r.Partition != 0 {
				t.Fatalf("%s was sent to partition %d", r.Key, r.Partition)
			}
		}
	})
}

func TestNewPartitionsAreRefusedAfterRestart(t *testing.T) {
	t.Parallel()
	eachDelivery(t, func(t *testing.T, exactlyOnce bool) {
		k, topic := topicOf(t, exactlyOnce)
		p, _ := open(t, k)
		if err := p.Publish(t.Context(), things("a"), behind(1)); err != nil {
			t.Fatal(err)
		}
		p.Close() // at once: with at-least-once no progress is kept yet

		grow(t, k, topic, 8)
		for range 2 {
			_, _, err := k.Open(t.Context(), "main", "")
			wantChange(t, err, relay.PartitionsError{Topic: topic, Sent: 1, Now: 8})
		}
	})
}

func TestNewPartitionsAreUsedAfterDrain(t *testing.T) {
	t.Parallel()
	eachDelivery(t, func(t *testing.T, exactlyOnce bool) {
		d := newDatabase(t)
		k, topic := topicOf(t, exactlyOnce)
		k.DrainOnPartitionChange = true
		r := start(t, d.relay, k.Open, nil)
		want := d.commit(t, "a", "b", "c", "d", "e", "f", "g", "h")
		d.sentAll(t)

		grow(t, k, topic, 8)
		var failures []error
		for len(failures) < 2 { // one found it while sending, unless it was idle; the next term says that it goes on
			want = append(want, d.commit(t, "a", "b", "c", "d", "e", "f", "g", "h")...)
			d.sentAll(t)
			for len(r.errors) > 0 {
				failures = append(failures, <-r.errors)
			}
		}
		wantChange(t, failures[0], relay.PartitionsError{Topic: topic, Sent: 1, Now: 8})
		wantChange(t, failures[1], relay.PartitionsError{Topic: topic, Sent: 1, Now: 8, GoingOn: true})
		want = append(want, d.commit(t, "a", "b", "c", "d", "e", "f", "g", "h")...)
		d.sentAll(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}

		records := readTopic(t, k.Brokers, topic, kgo.ReadCommitted())
		used := map[int32]bool{}
		sent := map[string]bool{}
		for _, record := range records {
			used[record.Partition] = true
			sent[string(record.Headers[1].Value)] = true
		}
		if len(used) < 2 {
			t.Error("all events are on one partition")
		}
		for _, id := range want {
			if !sent[id.String()] {
				t.Errorf("event %s is lost", id)
			}
		}
	})
}

// TestNewPartitionsBeforeTheFirstEvent: where nothing was sent, nothing can be overtaken.
func TestNewPartitionsBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	k, topic := topicOf(t, false)
	k.Topics = []string{"things"}
	p, _ := open(t, k)
	p.Close()
	grow(t, k, topic, 8)
	p, _ = open(t, k)
	if err := p.Publish(t.Context(), things("a"), behind(1)); err != nil {
		t.Error(err)
	}
}

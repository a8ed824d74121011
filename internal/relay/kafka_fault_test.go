package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
)

// What a broker answers on purpose: kfake, which can be told to.

func newCluster(t testing.TB) (*kfake.Cluster, kafka.Producer) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster, kafka.Producer{Brokers: cluster.ListenAddrs(), Topics: []string{"things"}}
}

// open opens a publisher of the relay named "main".
func open(t testing.TB, k kafka.Producer) (relay.Publisher, *relay.Progress) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	p, kept, err := k.Open(ctx, "main", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, kept
}

// things returns a message for each aggregate.
func things(aggregates ...string) (ms []relay.Message) {
	for _, a := range aggregates {
		ms = append(ms, relay.Message{EventID: uuid.Must(uuid.NewV7()), AggregateType: "things", AggregateID: a, Type: "thing.changed", Payload: []byte("{}")})
	}
	return ms
}

// behind is the progress behind so many batches.
func behind(batches int64) relay.Progress {
	return relay.Progress{Epoch: "of a test", Position: relay.Position{Batches: batches, Last: 10 * batches, Seen: "1:1:"}}
}

func TestShortBrokerOutageKeepsTerm(t *testing.T) {
	t.Parallel()
	for _, exactlyOnce := range []bool{false, true} {
		for _, err := range []*kerr.Error{kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.RequestTimedOut} {
			t.Run(fmt.Sprintf("%s, exactly once %t", err.Message, exactlyOnce), func(t *testing.T) {
				t.Parallel()
				cluster, kafka := newCluster(t)
				kafka.ExactlyOnce = exactlyOnce
				p, _ := open(t, kafka)
				fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "things", Err: err, Count: 3})
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // not 5 s for each attempt
				defer cancel()
				if err := p.Publish(ctx, things("a", "b"), behind(1)); err != nil {
					t.Fatal(err)
				}
				if fault.Hits() != 3 {
					t.Errorf("%d requests met the fault, want 3", fault.Hits())
				}
			})
		}
	}
}

// A relay must not blame an event, nor give up, when there are too few replicas for longer than it waits at a time.
func TestLastingOutageIsNoRefusal(t *testing.T) {
	t.Parallel()
	for _, exactlyOnce := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once %t", exactlyOnce), func(t *testing.T) {
			t.Parallel()
			cluster, kafka := newCluster(t)
			kafka.ExactlyOnce = exactlyOnce
			p, _ := open(t, kafka)
			fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "things", Err: kerr.NotEnoughReplicas, Count: -1})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- p.Publish(ctx, things("a"), behind(1)) }()
			err := next(t, ended, "Publish")
			if err == nil || refusal(err) != nil {
				t.Errorf("Publish returned %v", err)
			}
			if !strings.Contains(err.Error(), "things") {
				t.Errorf("nobody learns which topic it is: %v", err)
			}
			fault.Remove()
			q, kept := open(t, kafka)
			if kept != nil {
				t.Errorf("progress %+v was kept, nothing was acknowledged", kept)
			}
			if err := q.Publish(t.Context(), things("a"), behind(1)); err != nil {
				t.Error(err)
			}
		})
	}
}

// refusal returns err if it is one.
func refusal(err error) *relay.BatchError {
	if failed, is := errors.AsType[*relay.BatchError](err); is && failed.Refused {
		return failed
	}
	return nil
}

// At-least-once sends progress along with a batch, in a request of its own or not: it is nobody's event.
func TestRefusalDoesNotCountProgress(t *testing.T) {
	t.Parallel()
	cluster, kafka := newCluster(t)
	p, _ := open(t, kafka)
	if err := p.Publish(t.Context(), things("a"), behind(1)); err != nil { // progress of it goes with the next
		t.Fatal(err)
	}
	cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "things", Err: kerr.MessageTooLarge})
	err := p.Publish(t.Context(), things("a"), behind(2))
	if refused := refusal(err); refused == nil || refused.Index != 0 || len(refused.Ahead) > 0 {
		t.Errorf("Publish returned %#v", err)
	}
}

func TestRefusedProgressIsOutage(t *testing.T) {
	t.Parallel()
	for _, exactlyOnce := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once %t", exactlyOnce), func(t *testing.T) {
			t.Parallel()
			cluster, kafka := newCluster(t)
			kafka.ExactlyOnce = exactlyOnce
			p, _ := open(t, kafka)
			var err error
			cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "relay-progress.main", Err: kerr.MessageTooLarge})
			for n := int64(1); n <= 2 && err == nil; n++ {
				err = p.Publish(t.Context(), things("a"), behind(n))
			}
			var topic *relay.TopicError
			if !errors.As(err, &topic) || topic.Topic != "relay-progress.main" || refusal(err) != nil {
				t.Errorf("Publish returned %v", err)
			}
		})
	}
}

func TestExistingTopicsNeedNoRightToMakeThem(t *testing.T) {
	t.Parallel()
	cluster, kafka := newCluster(t)
	open(t, kafka) // by somebody who may
	fault := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics, kmsg.DescribeConfigs}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	p, _ := open(t, kafka)
	if err := p.Publish(t.Context(), things("a"), behind(1)); err != nil {
		t.Error(err)
	}
	kafka.Topics = append(kafka.Topics, "others")
	_, _, err := kafka.Open(t.Context(), "main", "")
	var topic *relay.TopicError
	if !errors.As(err, &topic) || topic.Topic != "others" {
		t.Errorf("Open returned %v", err)
	}
	if fault.Hits() == 0 {
		t.Error("nothing was refused")
	}
}

// A broker that accepts connections and says nothing must not hold up who asks for it.
func TestPingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cluster, kafka := newCluster(t)
	p, _ := open(t, kafka)
	var drop atomic.Bool
	drop.Store(true)
	cluster.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if r.Key() == int16(kmsg.Metadata) && drop.CompareAndSwap(true, false) {
			return nil, errors.New("the connection breaks"), true
		}
		return nil, nil, true // no answer
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- kafka.Ping(ctx) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Ping returned nil")
		}
	case <-time.After(soon):
		t.Error("Ping is still waiting long after its context ended")
	}
	closed := make(chan struct{})
	go func() { p.Close(); close(closed) }()
	next(t, closed, "Close")
}

// Whatever request of a transaction is not answered: it must not keep a relay from ending.
func TestExactlyOncePublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, key := range []kmsg.Key{kmsg.Metadata, kmsg.Produce, kmsg.EndTxn} {
		t.Run(key.Name(), func(t *testing.T) {
			t.Parallel()
			cluster, kafka := newCluster(t)
			kafka.ExactlyOnce = true
			p, _ := open(t, kafka)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stop := context.AfterFunc(t.Context(), cancel)
			defer stop()
			var met atomic.Bool
			cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				met.Store(true)
				cancel()
				return nil, nil, true // no answer
			})
			done := make(chan error, 1)
			go func() { done <- p.Publish(ctx, things("a"), behind(1)) }()
			select {
			case err := <-done:
				if err == nil && met.Load() {
					t.Error("Publish returned nil")
				}
				if !met.Load() {
					t.Errorf("%s is not asked", key.Name())
				}
			case <-time.After(soon):
				t.Errorf("Publish is still waiting long after its context ended; met %t", met.Load())
			}
			closed := make(chan struct{})
			go func() { p.Close(); close(closed) }()
			next(t, closed, "Close")
		})
	}
}

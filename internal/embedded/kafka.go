package embedded

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka is a broker inside this process: one node, with consumer groups and transactions, all in
// memory. Topics are created on request only, never by using their names.
type Kafka struct {
	cluster *kfake.Cluster
	brokers []string // kfake does not answer once it has stopped
	down    atomic.Bool
}

// StartKafka starts a broker on a free port, which is ready when StartKafka returns. The caller
// stops it.
func StartKafka() (*Kafka, error) {
	cluster, err := kfake.NewCluster(kfake.Ports(0))
	if err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}

	return &Kafka{cluster: cluster, brokers: cluster.ListenAddrs()}, nil
}

// Brokers returns the addresses that clients start from.
func (k *Kafka) Brokers() []string { return k.brokers }

// Origin describes the broker, with its version.
func (k *Kafka) Origin() string {
	const module = "github.com/twmb/franz-go/pkg/kfake"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == module {
				return "kfake " + m.Version + " in this process"
			}
		}
	}

	return "kfake in this process"
}

// Catch calls then when the next request of that key has arrived and before it takes effect; a
// Produce request counts if it is for topic. Afterwards the request is carried out, or, if then
// returns true, dropped as by a broker that died.
func (k *Kafka) Catch(key kmsg.Key, topic string, then func() (drop bool)) {
	// A Produce request names its topics by ID.
	var id [16]byte
	if info := k.cluster.TopicInfo(topic); info != nil {
		id = info.TopicID
	}
	wanted := func(t kmsg.ProduceRequestTopic) bool { return t.TopicID == id }

	k.cluster.ControlKey(key.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		produce, is := r.(*kmsg.ProduceRequest)
		if is && !slices.ContainsFunc(produce.Topics, wanted) {
			return nil, nil, false
		}

		// One request only: the next one is handled as usual.
		k.cluster.DropControl()
		if then() {
			return nil, errDropped, true
		}

		return nil, nil, false
	})
}

// SetDown takes the broker away, or brings it back with all that it has: meanwhile every connection
// ends with its first request.
func (k *Kafka) SetDown(down bool) {
	k.down.Store(down)
	if !down {
		return
	}

	k.cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		if !k.down.Load() {
			k.cluster.DropControl()
			return nil, nil, false
		}
		k.cluster.KeepControl()
		return nil, errDropped, true
	})
}

// Freeze makes the broker answer nothing until thaw is called: connections stay open, and requests wait.
func (k *Kafka) Freeze() (thaw func()) {
	thawed := make(chan struct{})
	k.cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		<-thawed
		k.cluster.DropControl()
		return nil, nil, false
	})
	return sync.OnceFunc(func() { close(thawed) })
}

// Down reports whether SetDown took the broker away.
func (k *Kafka) Down() bool { return k.down.Load() }

var errDropped = errors.New("dropped")

// Stop closes all connections and forgets everything.
func (k *Kafka) Stop() { k.cluster.Close() }

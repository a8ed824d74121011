package embedded

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// KafkaOptions are all optional.
type KafkaOptions struct {
	Dir  string // keeps topics, offsets and transactions across restarts; empty: in memory
	Port int    // 0: a free one
}

// Kafka is a broker inside this process: one node, with consumer groups and transactions. Topics
// are created on request only, never by using their names.
type Kafka struct{ cluster *kfake.Cluster }

// StartKafka starts a broker, which is ready when StartKafka returns. The caller stops it.
func StartKafka(_ context.Context, o KafkaOptions) (*Kafka, error) {
	opts := []kfake.Opt{kfake.Ports(o.Port)}
	if o.Dir != "" {
		// kfake writes without fsync, as Kafka itself does. That is enough to survive a kill.
		opts = append(opts, kfake.DataDir(o.Dir))
	}

	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("start kafka: %w", err)
	}

	return &Kafka{cluster: cluster}, nil
}

// Brokers returns the addresses that clients start from.
func (k *Kafka) Brokers() []string { return k.cluster.ListenAddrs() }

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

// Catch calls then when the next wanted request of that key has arrived and before it takes
// effect. Afterwards the request is carried out, or, if then returns true, dropped as by a broker
// that died.
func (k *Kafka) Catch(key kmsg.Key, wanted func(kmsg.Request) bool, then func() (drop bool)) {
	k.cluster.ControlKey(key.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if !wanted(r) {
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

var errDropped = errors.New("dropped")

// Stop closes all connections and writes to Dir what it keeps.
func (k *Kafka) Stop() { k.cluster.Close() }

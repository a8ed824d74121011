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
	Dir  string // keeps topics, offsets and transactions over restarts; empty: in memory
	Port int    // 0: a free one
}

// Kafka is a broker inside this process: one node, with consumer groups and transactions. Topics are made on request,
// never by naming them.
type Kafka struct{ cluster *kfake.Cluster }

// StartKafka starts a broker; it is ready when StartKafka returns. The caller stops it.
func StartKafka(_ context.Context, o KafkaOptions) (*Kafka, error) {
	opts := []kfake.Opt{kfake.Ports(o.Port)}
	if o.Dir != "" {
		// Written without fsync, as Kafka itself does: enough for a process that is killed.
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

// Origin says what the broker is, with its version.
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

// Catch calls then with the next wanted request of that key in hand: it was received and nothing was done with it. Afterwards it is
// done; or dropped, as by a broker that died, if then says so.
func (k *Kafka) Catch(key kmsg.Key, wanted func(kmsg.Request) bool, then func() (drop bool)) {
	k.cluster.ControlKey(key.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		if !wanted(r) {
			return nil, nil, false
		}
		k.cluster.DropControl()
		if then() {
			return nil, errDropped, true
		}
		return nil, nil, false
	})
}

var errDropped = errors.New("dropped")

// Stop closes all connections and writes down what Dir is to keep.
func (k *Kafka) Stop() { k.cluster.Close() }

package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka is where and how messages are produced: CloudEvents 1.0 in binary mode (the event's attributes are record
// headers, its data the value), keyed by aggregate id.
type Kafka struct {
	Brokers     []string
	TopicPrefix string   // topic = TopicPrefix + aggregate type
	Topics      []string // aggregate types whose topics are made when they are missing
	Source      string   // ce_source: a URI reference that names the producing system
	ExactlyOnce bool     // each batch in a Kafka transaction, together with the progress that it makes
}

const (
	// Partitions of a topic that is made. A topic that is there already is taken as it is: raising its count would send an
	// aggregate's next events to another partition, out of order with the ones before.
	partitions = 12
	// The topic that Progress is kept on, keyed by relay. One partition, compacted.
	progressTopic = "relay-progress"
	// What the batch around records takes (KIP-98): 61 bytes, which count for the broker, and their number, which counts for
	// franz-go. And what franz-go allows where the topic's own limit is not known; Kafka's default is 1,048,588. A record that
	// comes to more is refused before anything is sent.
	batchOverhead   = 61 + 4
	defaultMaxBytes = 1_000_012
	// How soon a partition that has lost its leader, or too many replicas, is tried again; franz-go would wait for 5 s each time.
	metadataAge = 250 * time.Millisecond
	// How long a transaction may last that nobody fences: it holds up readers with read_committed. Kafka looks every ten seconds.
	transactionTimeout = 10 * time.Second
)

// Open implements the field Open of Relay. It connects, makes topics that are missing, shuts out the relays of the same name
// whose clients still run (with ExactlyOnce; else there is nothing to shut them out by), and reads what they kept.
func (k Kafka) Open(ctx context.Context, relay string) (Publisher, *Progress, error) {
	p := &kafkaPublisher{Kafka: k, relay: relay, maxBytes: map[string]int{}}
	opts := []kgo.Opt{
		kgo.SeedBrokers(k.Brokers...),
		kgo.ClientID("oncepay-relay"),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MetadataMinAge(metadataAge),
		kgo.ManualFlushing(), // a batch comes complete: it need not wait for company, and goes out in as few requests as possible
		kgo.RecordPartitioner(partitioner{kgo.StickyKeyPartitioner(nil), k.TopicPrefix + progressTopic}),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return int32(p.limit(topic)) }),
		kgo.MaxBufferedRecords(50_000),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}
	if k.ExactlyOnce {
		opts = append(opts, kgo.TransactionalID(k.TopicPrefix+"relay."+relay), // of the name alone: that is what fences
			kgo.TransactionTimeout(transactionTimeout))
	}
	var err error
	if p.client, err = kgo.NewClient(opts...); err != nil {
		return nil, nil, fmt.Errorf("make Kafka client: %w", err)
	}
	// The first exchange on a connection does not look at ctx: a broker that accepts and says nothing would be waited for.
	p.close = sync.OnceFunc(p.client.Close)
	closed := context.AfterFunc(ctx, p.close)
	kept, err := p.open(ctx)
	if !closed() {
		return nil, nil, fmt.Errorf("open Kafka: %w", context.Cause(ctx))
	}
	if err != nil {
		p.close()
		return nil, nil, err
	}
	return p, kept, nil
}

// Ping asks whether a broker answers.
func (k Kafka) Ping(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...), kgo.ClientID("oncepay-relay"))
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}
	// The first exchange on a connection does not look at ctx: a broker that accepts and says nothing would be waited for.
	closed := context.AfterFunc(ctx, client.Close)
	err = client.Ping(ctx)
	if closed() {
		client.Close()
	}
	if err != nil {
		return fmt.Errorf("reach Kafka at %s: %w", strings.Join(k.Brokers, ","), err)
	}
	return nil
}

func (p *kafkaPublisher) open(ctx context.Context) (*Progress, error) {
	admin := kadm.NewClient(p.client)
	var names []string
	for _, t := range p.Topics {
		names = append(names, p.TopicPrefix+t)
	}
	progress := p.TopicPrefix + progressTopic
	there, err := listTopics(ctx, admin, append(slices.Clone(names), progress)...)
	if err != nil {
		return nil, err
	}
	// Only what is missing needs the right to make topics. Short segments: what is read at the start of a term is what was not compacted yet.
	if !there.Has(progress) {
		settings := map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "segment.bytes": kadm.StringPtr("4194304"), "min.cleanable.dirty.ratio": kadm.StringPtr("0.1")}
		if err := makeTopics(ctx, admin, 1, settings, progress); err != nil {
			return nil, err
		}
	}
	if err := makeTopics(ctx, admin, partitions, nil, slices.DeleteFunc(slices.Clone(names), there.Has)...); err != nil {
		return nil, err
	}
	p.readLimits(ctx, admin, names)
	if _, _, err := p.client.ProducerID(ctx); err != nil { // with a transactional id this is the fence
		return nil, fmt.Errorf("get a producer id: %w", err)
	}
	return p.readProgress(ctx)
}

func listTopics(ctx context.Context, admin *kadm.Client, names ...string) (kadm.TopicDetails, error) {
	there, err := admin.ListTopics(ctx, names...)
	if errors.Is(err, kerr.TopicAuthorizationFailed) { // it does not say of which
		for _, name := range names {
			if _, err := admin.ListTopics(ctx, name); errors.Is(err, kerr.TopicAuthorizationFailed) {
				return nil, &TopicError{Topic: name, Err: err}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	return there, nil
}

func makeTopics(ctx context.Context, admin *kadm.Client, partitions int32, settings map[string]*string, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	made, err := admin.CreateTopics(ctx, partitions, -1, settings, names...) // -1: the broker's own default of copies
	if err != nil {
		return fmt.Errorf("make topics: %w", err)
	}
	for _, t := range made.Sorted() {
		if t.Err != nil && !errors.Is(t.Err, kerr.TopicAlreadyExists) {
			return &TopicError{Topic: t.Topic, Err: fmt.Errorf("make it: %w", t.Err)}
		}
	}
	return nil
}

// readLimits asks how large a record of each topic may be. A relay that may not ask goes by Kafka's default.
func (p *kafkaPublisher) readLimits(ctx context.Context, admin *kadm.Client, topics []string) {
	if len(topics) == 0 {
		return
	}
	all, _ := admin.DescribeTopicConfigs(ctx, topics...)
	for _, topic := range all {
		for _, c := range topic.Configs {
			if n, err := strconv.Atoi(c.MaybeValue()); c.Key == "max.message.bytes" && err == nil && n > 0 {
				p.maxBytes[topic.Name] = n
			}
		}
	}
}

func (p *kafkaPublisher) limit(topic string) int {
	if n, known := p.maxBytes[topic]; known {
		return min(n, 100<<20)
	}
	return defaultMaxBytes
}

// partitioner keeps the key on its partition, and progress on the one that is read.
type partitioner struct {
	kgo.Partitioner
	progress string
}

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if topic == p.progress {
		return kgo.ManualPartitioner().ForTopic(topic) // a record's own: the first
	}
	return p.Partitioner.ForTopic(topic)
}

package kafka

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

	"github.com/oncepay/oncepay/internal/relay"
)

// Kafka is where and how messages are produced: CloudEvents 1.0 in binary mode (the event's attributes are record
// headers, its data the value), keyed by aggregate id.
type Producer struct {
	Brokers     []string
	TopicPrefix string   // topic = TopicPrefix + aggregate type
	Topics      []string // aggregate types whose topics are made when they are missing
	Source      string   // ce_source: a URI reference that names the producing system
	ExactlyOnce bool     // each batch in a Kafka transaction, together with the progress that it makes

	// DrainOnPartitionChange lets the relay go on when a topic has another number of partitions than its events were sent
	// with, once all of those are acknowledged. Otherwise it refuses. See partitions.go.
	DrainOnPartitionChange bool
	// Options are for every client that is made: TLS, SASL, compression. They come last, so they win.
	Options []kgo.Opt
}

const (
	// Partitions of a topic that is made. A topic that is there already is taken as it is: raising its count would send an
	// aggregate's next events to another partition, out of order with the ones before.
	partitions = 12
	// Where Progress is kept: a topic for each relay, "relay-progress." and its name. One partition, compacted.
	progressTopics = "relay-progress."
	// What the batch around records takes (KIP-98): 61 bytes, which count for the broker, and their number, which counts for
	// franz-go. And what franz-go allows where the topic's own limit is not known; Kafka's default is 1,048,588. A record that
	// comes to more is refused before anything is sent.
	batchOverhead   = 61 + 4
	defaultMaxBytes = 1_000_012
	// How soon a partition that has lost its leader, or too many replicas, is tried again; franz-go would wait for 5 s each time.
	metadataAge = 250 * time.Millisecond
	// How soon a change of a topic's partitions is noticed while events are sent to it.
	metadataMaxAge = 10 * time.Second
	// How long a transaction may last that nobody fences: it holds up readers with read_committed. Kafka looks every ten seconds.
	transactionTimeout = 10 * time.Second
)

// Open implements the field Open of Relay. It connects, makes topics that are missing, shuts out the relays of the same name
// whose clients still run (with ExactlyOnce; else there is nothing to shut them out by), and reads what they kept.
func (k Producer) Open(ctx context.Context, name string) (relay.Publisher, *relay.Progress, error) {
	p := &publisher{Producer: k, name: name, progressTopic: k.TopicPrefix + progressTopics + name,
		maxBytes: map[string]int{}, counts: map[string]int32{}, made: map[string]int32{}, changed: map[string]error{}}
	if !legalTopic(p.progressTopic) {
		return nil, nil, fmt.Errorf("relay %q: no topic can be called %q", name, p.progressTopic)
	}
	opts := []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MetadataMinAge(metadataAge),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.ManualFlushing(), // a batch comes complete: it need not wait for company, and goes out in as few requests as possible
		kgo.RecordPartitioner(partitioner{kgo.StickyKeyPartitioner(nil), p}),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return int32(p.limit(topic)) }),
		kgo.MaxBufferedRecords(50_000),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	}
	if k.ExactlyOnce {
		opts = append(opts, kgo.TransactionalID(k.TopicPrefix+"relay."+name), // of the name alone: that is what fences
			kgo.TransactionTimeout(transactionTimeout))
	}
	var err error
	if p.client, err = k.newClient(opts...); err != nil {
		return nil, nil, err
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

func (k Producer) newClient(opts ...kgo.Opt) (*kgo.Client, error) {
	opts = append([]kgo.Opt{kgo.SeedBrokers(k.Brokers...), kgo.ClientID("oncepay-relay")}, opts...)
	client, err := kgo.NewClient(append(opts, k.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	return client, nil
}

// Ping asks whether a broker answers.
func (k Producer) Ping(ctx context.Context) error {
	client, err := k.newClient()
	if err != nil {
		return err
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

func (p *publisher) open(ctx context.Context) (*relay.Progress, error) {
	admin := kadm.NewClient(p.client)
	var names []string
	for _, t := range p.Topics {
		names = append(names, p.TopicPrefix+t)
	}
	there, err := listTopics(ctx, admin, append(slices.Clone(names), p.progressTopic)...)
	if err != nil {
		return nil, err
	}
	// Only what is missing needs the right to make topics.
	if !there.Has(p.progressTopic) {
		settings := map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "segment.bytes": kadm.StringPtr("4194304"), "min.cleanable.dirty.ratio": kadm.StringPtr("0.1")}
		if _, err := makeTopics(ctx, admin, 1, settings, p.progressTopic); err != nil {
			return nil, err
		}
	}
	missing := slices.DeleteFunc(slices.Clone(names), there.Has)
	if p.made, err = makeTopics(ctx, admin, partitions, nil, missing...); err != nil {
		return nil, err
	}

	p.readLimits(ctx, admin, names)
	if _, _, err := p.client.ProducerID(ctx); err != nil { // with a transactional id this is the fence
		return nil, fmt.Errorf("get a producer id: %w", err)
	}
	kept, err := p.readProgress(ctx, admin)
	if err != nil {
		return nil, err
	}
	return kept, p.compareCounts(ctx)
}

func listTopics(ctx context.Context, admin *kadm.Client, names ...string) (kadm.TopicDetails, error) {
	there, err := admin.ListTopics(ctx, names...)
	if errors.Is(err, kerr.TopicAuthorizationFailed) { // it does not say of which
		for _, name := range names {
			if _, err := admin.ListTopics(ctx, name); errors.Is(err, kerr.TopicAuthorizationFailed) {
				return nil, &relay.TopicError{Topic: name, Err: err}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	return there, nil
}

// makeTopics returns how many partitions each topic has that it made.
func makeTopics(
	ctx context.Context, admin *kadm.Client, partitions int32, settings map[string]*string, names ...string,
) (map[string]int32, error) {
	if len(names) == 0 {
		return nil, nil
	}
	answers, err := admin.CreateTopics(ctx, partitions, -1, settings, names...) // -1: the broker's own default of copies
	if err != nil {
		return nil, fmt.Errorf("make topics: %w", err)
	}
	made := map[string]int32{}
	for _, t := range answers.Sorted() {
		switch {
		case t.Err == nil:
			made[t.Topic] = partitions
		case !errors.Is(t.Err, kerr.TopicAlreadyExists):
			return nil, &relay.TopicError{Topic: t.Topic, Err: fmt.Errorf("make it: %w", t.Err)}
		}
	}
	return made, nil
}

// readLimits asks how large a record of each topic may be. A relay that may not ask goes by Kafka's default.
func (p *publisher) readLimits(ctx context.Context, admin *kadm.Client, topics []string) {
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

func (p *publisher) limit(topic string) int {
	if n, known := p.maxBytes[topic]; known {
		return min(n, 100<<20)
	}
	return defaultMaxBytes
}

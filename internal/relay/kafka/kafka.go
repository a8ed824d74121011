// Package kafka is the relay's Publisher for Kafka. Nothing else produces to it, but for the Resender,
// which sends again what was sent.
//
// Files: kafka.go opens a Publisher, publish.go sends a batch, progress.go keeps and reads
// progress, partitions.go watches the number of partitions, copies.go asks how many copies of a
// record there are, record.go makes records of messages, resend.go sends again.
package kafka

import (
	"cmp"
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

// Producer says where and how to produce: CloudEvents 1.0 in binary mode (attributes are record
// headers, data is the value), keyed by aggregate id.
type Producer struct {
	Brokers     []string
	TopicPrefix string   // topic = TopicPrefix + aggregate type
	Topics      []string // aggregate types whose topics are made if they are missing
	Source      string   // ce_source: a URI reference that names the producing system
	ExactlyOnce bool     // each batch in a Kafka transaction, together with its progress

	// ClientID is the service's name in the broker's logs, metrics and quotas; default
	// "oncepay-relay".
	ClientID string

	// DrainOnPartitionChange lets the relay go on when a topic has more partitions than its events
	// were sent with, once all of those are acknowledged. Otherwise, or with fewer, it refuses. See
	// partitions.go.
	DrainOnPartitionChange bool

	// Of topics that are made; those that exist are left alone. Zero: 12 partitions, and the broker's
	// defaults. The progress topic has one partition, and the other two settings.
	Partitions  int
	Replication int // replicas of each partition
	MinInsync   int // min.insync.replicas: how many copies acks=all waits for, at least

	// Options apply to every client: TLS, SASL, compression. They come last, so they win.
	Options []kgo.Opt
}

const (
	// Of a topic that is made. The count of an existing topic is left alone: with another one, an
	// aggregate's next events would go to another partition, out of order with the ones before.
	defaultPartitions = 12
	// Progress is in a topic for each relay: this and its name, one partition, compacted.
	progressTopics = "relay-progress."
	// A record batch adds 61 bytes (KIP-98), which the broker counts, and its length, which
	// franz-go counts.
	batchOverhead = 61 + 4
	// What franz-go allows if the topic's limit is not known; Kafka's own default is 1,048,588.
	defaultMaxBytes = 1_000_012
	// How soon a partition without a leader or enough replicas is tried again; franz-go's default
	// is 5 s.
	metadataMinAge = 250 * time.Millisecond
	// How soon a change of a topic's partitions is noticed while events are sent to it.
	metadataMaxAge = 10 * time.Second
	// An abandoned transaction holds up readers with read_committed for so long, plus up to 10 s.
	transactionTimeout = 10 * time.Second
)

// Open implements the field Open of relay.Relay. It connects, makes missing topics, fences relays
// of the same cursor that still run (only possible with ExactlyOnce), and reads the progress that
// they kept. Cursors of other databases may share the name and the topics: each has a progress
// and a transactional id of its own.
func (k Producer) Open(
	ctx context.Context, name, cursor string,
) (relay.Publisher, *relay.Progress, error) {
	p := &publisher{
		Producer: k, key: name + "." + cursor,
		progressTopic: k.TopicPrefix + progressTopics + name,
		maxBytes:      map[string]int{}, counts: map[string]int32{},
		made: map[string]int32{}, changed: map[string]error{},
	}

	if !legalTopic(p.progressTopic) {
		return nil, nil, fmt.Errorf("relay %q: no topic can be called %q", name, p.progressTopic)
	}

	opts := append(p.producing(), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if k.ExactlyOnce {
		opts = append(opts, kgo.TransactionTimeout(transactionTimeout),
			kgo.TransactionalID(k.TopicPrefix+"relay."+p.key)) // of every leader: that fences
	}

	var err error
	if p.client, err = k.newClient(opts...); err != nil {
		return nil, nil, err
	}

	// The first exchange on a connection ignores ctx: it would wait for a broker that accepts and
	// says nothing.
	p.close = sync.OnceFunc(p.client.Close)
	stillOpen := context.AfterFunc(ctx, p.close)
	kept, err := p.open(ctx)
	if !stillOpen() {
		return nil, nil, fmt.Errorf("open Kafka: %w", context.Cause(ctx))
	}
	if err != nil {
		p.close()
		return nil, nil, err
	}

	return p, kept, nil
}

// producing returns how events are produced. The broker drops what a retry repeats, which is
// franz-go's default.
func (p *publisher) producing() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MetadataMinAge(metadataMinAge),
		kgo.MetadataMaxAge(metadataMaxAge),
		kgo.ManualFlushing(), // batches come complete, and go out in as few requests as possible
		kgo.RecordPartitioner(kgo.BasicConsistentPartitioner(p.partition)),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return int32(p.limit(topic)) }),
		kgo.MaxBufferedRecords(50_000),
	}
}

func (k Producer) newClient(opts ...kgo.Opt) (*kgo.Client, error) {
	opts = append([]kgo.Opt{kgo.SeedBrokers(k.Brokers...), kgo.ClientID(cmp.Or(k.ClientID, "oncepay-relay"))}, opts...)
	client, err := kgo.NewClient(append(opts, k.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	return client, nil
}

// Ping returns an error unless a broker answers.
func (k Producer) Ping(ctx context.Context) error {
	return k.ask(ctx, func(client *kgo.Client) error {
		if err := client.Ping(ctx); err != nil {
			return fmt.Errorf("reach Kafka at %s: %w", strings.Join(k.Brokers, ","), err)
		}
		return nil
	})
}

// ask calls f with a client of its own, which is closed when f returns or ctx ends.
func (k Producer) ask(ctx context.Context, f func(*kgo.Client) error) error {
	client, err := k.newClient()
	if err != nil {
		return err
	}

	stillOpen := context.AfterFunc(ctx, client.Close) // as in Open
	err = f(client)
	if stillOpen() {
		client.Close()
	}

	return err
}

func (p *publisher) open(ctx context.Context) (*relay.Progress, error) {
	admin := kadm.NewClient(p.client)
	var names []string
	for _, t := range p.Topics {
		names = append(names, p.TopicPrefix+t)
	}

	there, forbidden, err := p.countPartitions(ctx, slices.Values(append(slices.Clone(names), p.progressTopic)))
	switch {
	case err != nil:
		return nil, err
	case forbidden != "":
		return nil, &relay.TopicError{Topic: forbidden, Err: kerr.TopicAuthorizationFailed}
	}

	// Only missing topics need the right to make them.
	if there[p.progressTopic] == 0 {
		settings := map[string]*string{
			"cleanup.policy": kadm.StringPtr("compact"), "segment.bytes": kadm.StringPtr("4194304"),
			"min.cleanable.dirty.ratio": kadm.StringPtr("0.1"),
		}
		if _, err := p.makeTopics(ctx, admin, 1, settings, p.progressTopic); err != nil {
			return nil, err
		}
	}

	missing := slices.DeleteFunc(slices.Clone(names), func(t string) bool { return there[t] > 0 })
	partitions := int32(cmp.Or(p.Partitions, defaultPartitions))
	p.made, err = p.makeTopics(ctx, admin, partitions, map[string]*string{}, missing...)
	if err != nil {
		return nil, err
	}

	p.readLimits(ctx, admin, names)
	// With a transactional id, this is the fence.
	if _, _, err := p.client.ProducerID(ctx); err != nil {
		return nil, fmt.Errorf("get a producer id: %w", err)
	}

	kept, err := p.readProgress(ctx)
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		err = &relay.TopicError{Topic: p.progressTopic, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read progress: %w", err)
	}

	return kept, p.compareCounts(ctx)
}

// makeTopics returns how many partitions each topic has that it made. It adds to the settings.
func (k Producer) makeTopics(
	ctx context.Context, admin *kadm.Client, partitions int32, settings map[string]*string,
	names ...string,
) (map[string]int32, error) {
	if len(names) == 0 {
		return nil, nil
	}

	replicas := int16(cmp.Or(k.Replication, -1)) // -1: the broker's default
	if k.MinInsync > 0 {
		settings[minInsync] = kadm.StringPtr(strconv.Itoa(k.MinInsync))
	}

	answers, err := admin.CreateTopics(ctx, partitions, replicas, settings, names...)
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

// readLimits asks how large a record of each topic may be. A relay that may not ask uses the
// default.
func (p *publisher) readLimits(ctx context.Context, admin *kadm.Client, topics []string) {
	if len(topics) == 0 {
		return
	}

	all, _ := admin.DescribeTopicConfigs(ctx, topics...)
	for _, topic := range all {
		for _, c := range topic.Configs {
			n, err := strconv.Atoi(c.MaybeValue())
			if c.Key == "max.message.bytes" && err == nil && n > 0 {
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

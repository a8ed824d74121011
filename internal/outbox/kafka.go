package outbox

import (
	"context"
	"encoding/json"
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
}

// Partitions of a topic that is made. A topic that is there already is taken as it is: raising its count would send an
// aggregate's next events to another partition, out of order with the ones before.
const partitions = 12

// Open connects, makes topics that are missing and returns a Publisher. It is idempotent within its own life only; what a
// relay that died has sent is sent again by the next one.
func (k Kafka) Open(ctx context.Context) (Publisher, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(k.Brokers...),
		kgo.ClientID("oncepay-relay"),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(0), // franz-go waits 10 ms for company by default; a batch comes complete
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.MaxBufferedRecords(50_000),
		// By default a record that is on its way is waited for beyond the end of its context, for ever if need be. Here an
		// error throws the client away: it must not keep a relay from ending its term, or from ending.
		kgo.AllowIdempotentProduceCancellation(),
	)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	// The first exchange on a connection does not look at ctx: a broker that accepts and says nothing would be waited for.
	closed := context.AfterFunc(ctx, client.Close)
	err = k.ensureTopics(ctx, kadm.NewClient(client))
	if !closed() {
		return nil, fmt.Errorf("open Kafka: %w", context.Cause(ctx))
	}
	if err != nil {
		client.Close()
		return nil, err
	}
	return &kafkaPublisher{client: client, prefix: k.TopicPrefix, source: k.Source}, nil
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

func (k Kafka) ensureTopics(ctx context.Context, admin *kadm.Client) error {
	if len(k.Topics) == 0 {
		return nil
	}
	names := make([]string, len(k.Topics))
	for i, t := range k.Topics {
		names[i] = k.TopicPrefix + t
	}
	there, err := admin.ListTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	missing := slices.DeleteFunc(names, there.Has) // only these need the right to make topics
	if len(missing) == 0 {
		return nil
	}
	// -1: the broker's own default of copies.
	made, err := admin.CreateTopics(ctx, partitions, -1, nil, missing...)
	if err != nil {
		return fmt.Errorf("make topics: %w", err)
	}
	for _, t := range made.Sorted() {
		if t.Err != nil && !errors.Is(t.Err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("make topic %s: %w", t.Topic, t.Err)
		}
	}
	return nil
}

type kafkaPublisher struct {
	client         *kgo.Client
	prefix, source string
}

// Publish implements Publisher. Records are handed over without waiting in between; one key is one partition, in order.
func (p *kafkaPublisher) Publish(ctx context.Context, batch []Message) error {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	wg.Add(len(batch))
	for i := range batch {
		r := p.record(&batch[i])
		p.client.Produce(ctx, r, func(r *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { first = fmt.Errorf("produce to %s: %w", r.Topic, err) })
			}
			wg.Done()
		})
	}
	wg.Wait()
	return first
}

func (p *kafkaPublisher) record(m *Message) *kgo.Record {
	headers := make([]kgo.RecordHeader, 0, 8+len(m.Headers))
	add := func(key, value string) { headers = append(headers, kgo.RecordHeader{Key: key, Value: []byte(value)}) }
	add("ce_specversion", "1.0")
	add("ce_id", m.EventID.String())
	add("ce_source", p.source)
	add("ce_type", m.Type)
	add("ce_subject", m.AggregateID)
	add("ce_time", m.CreatedAt.UTC().Format(time.RFC3339Nano))
	if m.AggregateVersion != nil {
		add("ce_sequence", strconv.FormatInt(*m.AggregateVersion, 10))
	}
	if _, own := m.Headers["content-type"]; !own {
		add("content-type", "application/json")
	}
	for key, value := range m.Headers {
		if !strings.HasPrefix(key, "ce_") { // those are the event's own, and there once
			add(key, text(value))
		}
	}
	return &kgo.Record{Topic: p.prefix + m.AggregateType, Key: []byte(m.AggregateID), Value: m.Payload, Headers: headers}
}

// text is a header's value: a row that was written by hand may hold more than strings, which must not stop the others.
func text(value any) string {
	if s, is := value.(string); is {
		return s
	}
	b, _ := json.Marshal(value) // it was JSON a moment ago
	return string(b)
}

// Close gives up what is not acknowledged.
func (p *kafkaPublisher) Close() { p.client.CloseAllowingRebalance() }

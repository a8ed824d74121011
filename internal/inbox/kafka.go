package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka is where events come from.
type Kafka struct {
	Brokers []string
	Group   string   // members of one group share the partitions
	Topics  []string // full names; the consumer waits for one that does not exist yet

	// ClientID is the service's name in the broker's logs, metrics and quotas; default
	// "oncepay-consumer".
	ClientID string

	// Options apply to every client: TLS, SASL. They come last, so they win.
	Options []kgo.Opt
}

const (
	// A poll becomes a transaction per partition, and a rebalance waits for them.
	pollLimit = 1000

	// How long to look for what other partitions have.
	shortestPoll = 10 * time.Millisecond

	// How long the partitions of a dead member wait for the next owner.
	sessionTimeout = 10 * time.Second

	// How long a rebalance waits for the batches in hand.
	rebalanceTimeout = time.Minute

	// How soon a new topic is noticed.
	metadataAge = 5 * time.Second

	commitTimeout = 5 * time.Second
	leaveTimeout  = 3 * time.Second
)

// Ping checks that one broker answers.
func (k Kafka) Ping(ctx context.Context) error {
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(k.Brokers...)}, k.Options...)...)
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}

	// The first exchange on a connection ignores ctx: without this, a broker that accepts and says
	// nothing would block us.
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

type partition struct {
	topic  string
	number int32
}

// message is a record as the consumer sees it.
type message struct {
	event  Event
	err    error       // why it is no event; event still has its position, key and payload
	marker bool        // the end of a producer's transaction: no event, but it has an offset
	record *kgo.Record // as received, to store it if it cannot be processed
}

// member is one member of the group. Its methods are for one goroutine, except lag, waiting
// and longest.
type member struct {
	client *kgo.Client
	group  string
	topics []string

	mu       sync.Mutex
	assigned map[partition]bool
	lost     []partition // since the last poll
}

// join makes a member. It joins the group in the background and retries without limit.
func (k Kafka) join() (*member, error) {
	m := &member{group: k.Group, topics: k.Topics, assigned: map[partition]bool{}}

	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(k.Brokers...),
		kgo.ClientID(cmp.Or(k.ClientID, "oncepay-consumer")),
		kgo.ConsumerGroup(k.Group),
		kgo.ConsumeTopics(k.Topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), // a new group starts with everything
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),      // an aborted transaction never happened
		kgo.KeepControlRecords(),                          // or their offsets always count as lag
		kgo.DisableAutoCommit(),                           // it would commit what is only polled
		kgo.BlockRebalanceOnPoll(),                        // revoke partitions only between batches
		kgo.Balancers(kgo.CooperativeStickyBalancer()),    // a rebalance stops only what moves
		kgo.SessionTimeout(sessionTimeout),
		kgo.RebalanceTimeout(rebalanceTimeout),
		kgo.MetadataMaxAge(metadataAge),
		kgo.MetadataMinAge(time.Second),
		kgo.FetchMaxWait(500 * time.Millisecond), // resuming waits for the fetch in flight
		kgo.OnPartitionsAssigned(m.note(true)),
		kgo.OnPartitionsRevoked(m.note(false)),
		kgo.OnPartitionsLost(m.note(false)),
	}, k.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}

	m.client = client
	return m, nil
}

// note notes partitions that are assigned now, or not any more: the next poll returns those.
func (m *member) note(assigned bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		m.mu.Lock()
		defer m.mu.Unlock()

		for topic, numbers := range topics {
			for _, n := range numbers {
				p := partition{topic, n}
				m.assigned[p] = assigned
				if !assigned {
					m.lost = append(m.lost, p)
				}
			}
		}
	}
}

// poll waits for messages, at most until the given time if it is not zero. The caller must forget
// the lost partitions, which were lost since the last poll, before it looks at what was fetched:
// they may be back already. No partition is lost between poll and yield.
func (m *member) poll(
	ctx context.Context, until time.Time,
) (fetched map[partition][]message, lost []partition, err error) {
	if !until.IsZero() {
		// PollRecords returns nothing once ctx has ended, and one partition may always be due.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(until), shortestPoll))
		defer cancel()
	}
	fetches := m.client.PollRecords(ctx, pollLimit)

	m.mu.Lock()
	lost, m.lost = m.lost, nil
	m.mu.Unlock()
	for _, p := range lost {
		m.release(p) // a pause outlives the assignment
	}

	var errs []error
	fetches.EachError(func(topic string, number int32, err error) {
		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		case topic == "":
			errs = append(errs, fmt.Errorf("fetch: %w", err))
		default:
			errs = append(errs, fmt.Errorf("fetch %s/%d: %w", topic, number, err))
		}
	})

	fetched = map[partition][]message{}
	fetches.EachRecord(func(r *kgo.Record) {
		p := partition{r.Topic, r.Partition}
		fetched[p] = append(fetched[p], newMessage(r))
	})

	return fetched, lost, errors.Join(errs...)
}

// yield lets partitions be revoked and assigned until the next poll.
func (m *member) yield() { m.client.AllowRebalance() }

// hold stops fetching from p until release.
func (m *member) hold(p partition)    { m.client.PauseFetchPartitions(p.asMap()) }
func (m *member) release(p partition) { m.client.ResumeFetchPartitions(p.asMap()) }

func (p partition) asMap() map[string][]int32 { return map[string][]int32{p.topic: {p.number}} }

// commit stores in the group that its members go on behind these messages. Nil: it is durable.
func (m *member) commit(ctx context.Context, done map[partition]message) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()

	var records []*kgo.Record
	for _, last := range done {
		records = append(records, last.record)
	}
	if err := m.client.CommitRecords(ctx, records...); err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	return nil
}

// lag counts the messages of the assigned partitions whose offset is not committed, returns where
// the partitions with any end, and names the topics that do not exist. It may be called at any time.
func (m *member) lag(
	ctx context.Context,
) (lag int64, behind map[partition]int64, missing []string, err error) {
	ends, err := kadm.NewClient(m.client).ListCommittedOffsets(ctx, m.topics...)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("list offsets: %w", err)
	}

	m.mu.Lock()
	assigned := maps.Clone(m.assigned)
	m.mu.Unlock()

	committed, behind := m.client.CommittedOffsets(), map[partition]int64{}
	for _, topic := range m.topics {
		for _, end := range ends[topic] {
			switch {
			case errors.Is(end.Err, kerr.UnknownTopicOrPartition):
				missing = append(missing, topic)
			case end.Err != nil:
				return 0, nil, nil, fmt.Errorf("list offsets of %s/%d: %w", topic, end.Partition, end.Err)
			case assigned[partition{topic, end.Partition}]:
				// With nothing committed this counts from 0, whatever the topic has deleted.
				if n := end.Offset - committed[topic][end.Partition].Offset; n > 0 {
					lag += n
					behind[partition{topic, end.Partition}] = end.Offset
				}
			}
		}
	}

	return lag, behind, missing, nil
}

// waiting returns which of the partitions that are behind have records for the group, and the offsets
// that it has committed as the broker knows them; -1: none. It may be called at any time.
func (m *member) waiting(
	ctx context.Context, behind map[partition]int64,
) (map[partition]int64, error) {
	admin := kadm.NewClient(m.client)
	committed, err := admin.FetchOffsets(ctx, m.group) // which shows as well that the group has a coordinator
	if err != nil {
		return nil, fmt.Errorf("fetch offsets of the group: %w", err)
	}
	if len(behind) == 0 {
		return nil, nil
	}
	starts, err := admin.ListStartOffsets(ctx, m.topics...)
	if err != nil {
		return nil, fmt.Errorf("list offsets: %w", err)
	}

	waiting := map[partition]int64{}
	for p, end := range behind {
		offset := int64(-1)
		if o, known := committed.Lookup(p.topic, p.number); known && o.Err == nil {
			offset = o.At
		}
		start, _ := starts.Lookup(p.topic, p.number)
		if end > max(offset, start.Offset) { // the topic may have deleted all that there was
			waiting[p] = offset
		}
	}
	return waiting, nil
}

// leave gives the partitions back, so that other members get them at once. If the broker is away,
// the session ends by itself.
func (m *member) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()

	m.client.AllowRebalance()
	err := m.client.LeaveGroupContext(ctx)
	m.client.CloseAllowingRebalance()
	if err != nil {
		return fmt.Errorf("leave group: %w", err)
	}

	return nil
}

// newMessage reads a record. Its position and key are set even if it is no event.
func newMessage(r *kgo.Record) message {
	e, err := readEvent(r)
	e.Topic, e.Partition, e.Offset, e.Key = r.Topic, r.Partition, r.Offset, r.Key

	return message{event: e, err: err, marker: r.Attrs.IsControl(), record: r}
}

// fields are the attributes that Event has a field for. All others are extensions.
var fields = []string{"specversion", "id", "type", "source", "subject", "time", "sequence"}

// readEvent reads a CloudEvent in binary mode: attributes in headers, data in the value.
func readEvent(r *kgo.Record) (e Event, err error) {
	e.Payload, e.Headers = r.Value, map[string]string{}

	attributes := map[string]string{}
	for _, h := range r.Headers {
		name, isAttribute := strings.CutPrefix(h.Key, "ce_")
		if !isAttribute {
			e.Headers[h.Key] = string(h.Value)
			continue
		}

		if _, twice := attributes[name]; twice {
			return e, fmt.Errorf("header %s is there twice", h.Key)
		}
		attributes[name] = string(h.Value)
	}
	e.Type, e.Source, e.Subject = attributes["type"], attributes["source"], attributes["subject"]

	// uuid.Parse also accepts urn:uuid:… and {…}, other texts for the same id. Only the plain form
	// is valid here.
	e.ID, err = uuid.Parse(attributes["id"])
	switch {
	case attributes["specversion"] != "1.0":
		return e, fmt.Errorf("header ce_specversion is %q, not 1.0", attributes["specversion"])
	case err != nil || len(attributes["id"]) != 36 || e.ID == uuid.Nil:
		return e, fmt.Errorf("header ce_id is %q, no UUID", attributes["id"])
	case e.Type == "":
		return e, errors.New("no header ce_type")
	case e.Source == "":
		return e, errors.New("no header ce_source")
	}

	// Time and sequence are optional. An event without a time becomes a dead letter later.
	if t, there := attributes["time"]; there {
		if e.Time, err = time.Parse(time.RFC3339Nano, t); err != nil {
			return e, fmt.Errorf("header ce_time is %q, no RFC 3339 time", t)
		}
	}
	if s, there := attributes["sequence"]; there {
		if e.Sequence, err = strconv.ParseInt(s, 10, 64); err != nil || e.Sequence < 0 {
			return e, fmt.Errorf("header ce_sequence is %q, no number", s)
		}
	}

	for _, name := range fields {
		delete(attributes, name)
	}
	e.Attributes = attributes
	return e, nil
}

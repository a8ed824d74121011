package invariant

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// stalled is how long a scan waits for a record before it gives up.
const stalled = 30 * time.Second

// copyTopics copies every committed record of the topics, up to where they end now. since is nil
// if the topics have every record they ever got, or else the time before which some were deleted. It
// leaves out what was read before, and notes in read how far it got.
func copyTopics(
	ctx context.Context, conn *pgx.Conn, s Sources, types []string, read offsets,
	progress func(string),
) (since *time.Time, err error) {
	same := append(
		[]kgo.Opt{kgo.SeedBrokers(s.Brokers...), kgo.ClientID("oncepay-check")},
		s.KafkaOptions...,
	)

	client, err := kgo.NewClient(same...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}

	// The first exchange on a connection ignores ctx, so a broker that accepts and stays silent
	// would block us. Closing the client ends it.
	closed := context.AfterFunc(ctx, client.Close)
	spans, err := findSpans(ctx, kadm.NewClient(client), s.TopicPrefix, types)
	if !closed() {
		return nil, fmt.Errorf("find the topics' ends: %w", context.Cause(ctx))
	}

	client.Close()
	if err != nil {
		return nil, err
	}

	r := &recordRows{
		ctx: ctx, prefix: s.TopicPrefix, progress: progress,
		spans: spans, read: read, oldest: map[partition]time.Time{},
	}

	from := r.starts()
	if r.open == 0 {
		return r.since(), nil // without a partition to read, the client would block
	}

	r.client, err = kgo.NewClient(append(same,
		kgo.ConsumePartitions(from),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),  // deleted meanwhile: an error, not skipped
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), // what a producer aborted never happened
		kgo.KeepControlRecords(),                     // a partition may end in one
	)...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	defer r.client.Close()

	_, err = conn.CopyFrom(ctx, pgx.Identifier{"topic_records"}, recordColumns, r)
	switch {
	case r.err != nil:
		return nil, r.err
	case err != nil:
		return nil, fmt.Errorf("copy records: %w", err)
	}
	for p, span := range spans {
		read[p] = span.end
	}
	return r.since(), nil
}

type partition struct {
	topic  string
	number int32
}

// offsets are how far partitions were read.
type offsets map[partition]int64

// span is what a partition holds: from the first offset that it still has to the last stable one.
type span struct{ start, end int64 }

func findSpans(ctx context.Context, admin *kadm.Client, prefix string, types []string) (map[partition]*span, error) {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = prefix + t
	}

	topics, err := admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}

	for _, t := range topics.Names() {
		if !topics.Has(t) {
			delete(topics, t) // nothing was ever sent to it
		}
	}

	if err := topics.Error(); err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}

	spans := map[partition]*span{}
	if len(topics) == 0 { // without names, the calls below would list every topic
		return spans, nil
	}

	starts, err := admin.ListStartOffsets(ctx, topics.Names()...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list first offsets: %w", err)
	}

	ends, err := admin.ListCommittedOffsets(ctx, topics.Names()...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list last stable offsets: %w", err)
	}

	starts.Each(func(o kadm.ListedOffset) {
		end, _ := ends.Lookup(o.Topic, o.Partition)
		spans[partition{o.Topic, o.Partition}] = &span{o.Offset, end.Offset}
	})
	return spans, nil
}

var recordColumns = []string{
	"aggregate_type", "partition", "offset", "event_id", "aggregate_id", "event_type",
	"aggregate_version", "created_at", "tenant_id", "digest", "malformed",
}

// recordRows reads the records of some partitions as a pgx.CopyFromSource.
type recordRows struct {
	ctx      context.Context
	client   *kgo.Client
	prefix   string
	progress func(string)

	spans       map[partition]*span // start advances as records are read
	read        offsets             // by an earlier reading
	open        int                 // partitions not yet read to their end
	total, done int64
	told        time.Time

	// oldest is when the oldest record left was made, for partitions that deleted some.
	oldest map[partition]time.Time

	fetched []*kgo.Record
	row     []any
	err     error
}

// starts returns the offset to read from for each partition that holds anything.
func (r *recordRows) starts() map[string]map[int32]kgo.Offset {
	from := map[string]map[int32]kgo.Offset{}
	for p, span := range r.spans {
		if span.start > 0 {
			// Until a record says otherwise, all of it was deleted, up to an unknown time.
			r.oldest[p] = time.Now()
		}

		span.start = max(span.start, r.read[p])
		if span.start >= span.end {
			continue
		}

		if from[p.topic] == nil {
			from[p.topic] = map[int32]kgo.Offset{}
		}
		from[p.topic][p.number] = kgo.NewOffset().At(span.start)

		r.open++
		r.total += span.end - span.start
	}

	return from
}

func (r *recordRows) Next() bool {
	for {
		for len(r.fetched) > 0 {
			record := r.fetched[0]
			r.fetched = r.fetched[1:]
			if r.take(record) {
				return true
			}
		}

		if r.open == 0 || !r.fetch() {
			return false
		}
	}
}

func (r *recordRows) Values() ([]any, error) { return r.row, nil }
func (r *recordRows) Err() error             { return r.err }

func (r *recordRows) fetch() bool {
	if now := time.Now(); now.Sub(r.told) > time.Second {
		r.progress(fmt.Sprintf("read topics: %d of %d records", r.done, r.total))
		r.told = now
	}

	// A scan that gets nothing must end with an error, not block.
	ctx, cancel := context.WithTimeout(r.ctx, stalled)
	defer cancel()

	fetches := r.client.PollFetches(ctx)

	r.fetched = fetches.Records()
	fetches.EachError(func(topic string, number int32, err error) {
		switch {
		case r.ctx.Err() != nil:
			r.err = fmt.Errorf("read topics: %w", context.Cause(r.ctx))
		case ctx.Err() != nil:
			r.err = fmt.Errorf("read topics: nothing came for %s, with %d partitions not at their end",
				stalled, r.open)
		default:
			r.err = errors.Join(r.err, fmt.Errorf("read topic %s, partition %d: %w", topic, number, err))
		}
	})

	return r.err == nil
}

// take turns a record into a row and reports whether there is one: markers and late records have
// none.
func (r *recordRows) take(record *kgo.Record) bool {
	p := partition{record.Topic, record.Partition}
	span := r.spans[p]
	if record.Offset < span.start || record.Offset >= span.end {
		return false // it came after the check began
	}

	// Offsets have gaps, so progress is the distance moved. Markers count: they may end a
	// partition.
	r.done += record.Offset + 1 - span.start
	span.start = record.Offset + 1
	if span.start == span.end {
		r.open--
	}

	if record.Attrs.IsControl() {
		return false
	}

	e := readEvent(record)

	// Remember how far back a partition goes if it has deleted records.
	if oldest, deleted := r.oldest[p]; deleted {
		made := record.Timestamp
		if e.createdAt != nil {
			made = *e.createdAt
		}
		if made.Before(oldest) {
			r.oldest[p] = made
		}
	}

	digest := sha256.Sum256(record.Value)
	r.row = []any{
		strings.TrimPrefix(record.Topic, r.prefix), record.Partition, record.Offset,
		e.id, text(record.Key), e.kind, e.version, e.createdAt, e.tenant, digest[:], e.malformed,
	}
	return true
}

// since returns the time before which any partition may have deleted records, or nil if none has.
func (r *recordRows) since() *time.Time {
	var latest *time.Time
	for _, t := range r.oldest {
		if latest == nil || t.After(*latest) {
			latest = &t
		}
	}

	return latest
}

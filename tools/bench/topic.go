package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/tools/rig"
)

const (
	topicPartitions = 12
	// fullAfter is how long a topic must not grow before it is taken for complete. It is not part
	// of what is measured.
	fullAfter = 700 * time.Millisecond
	// stall is how long a relay may send nothing while events are missing.
	stall = 30 * time.Second
)

// topic is where one measurement sends its events. Each has its own, which is deleted afterwards.
type topic struct {
	name    string
	brokers []string
	admin   *kadm.Client
}

func makeTopic(ctx context.Context, brokers []string, prefix string) (*topic, error) {
	admin, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}

	t := &topic{name: prefix + "payments", brokers: brokers, admin: admin}
	_, err = admin.CreateTopic(ctx, topicPartitions, -1, nil, t.name)
	if err == nil {
		// A broker says that it made a topic before each one knows its partitions.
		err = rig.Until(ctx, 10*time.Second, "it has its partitions", func(ctx context.Context) bool {
			ends, err := t.ends(ctx)
			return err == nil && len(ends) == topicPartitions
		})
	}
	if err != nil {
		admin.Close()
		return nil, fmt.Errorf("make topic %s: %w", t.name, err)
	}

	return t, nil
}

// remove deletes the topic, and what else the relay made under its prefix. It does not matter if it
// cannot: the next run's topics have other names.
func (t *topic) remove(ctx context.Context) {
	defer t.admin.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	all, _ := t.admin.ListTopicsWithInternal(ctx)
	prefix := strings.TrimSuffix(t.name, "payments")
	names := slices.DeleteFunc(all.Names(), func(n string) bool { return !strings.HasPrefix(n, prefix) })
	_, _ = t.admin.DeleteTopics(ctx, names...)
}

// ends returns how far a read_committed reader can read, by partition.
func (t *topic) ends(ctx context.Context) (map[int32]int64, error) {
	listed, err := t.admin.ListCommittedOffsets(ctx, t.name)
	if err == nil {
		err = listed.Error()
	}

	ends := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return ends, err
}

// await returns when the topic reached its full length, to some ten milliseconds. It asks for the
// length only: a consumer would take processor time from what is measured. Markers of transactions
// count, so the topic may be longer than there are events, and must have stopped growing.
func (t *topic) await(ctx context.Context, events int) (full time.Time, err error) {
	full, length := time.Now(), int64(0)
	for {
		ends, err := t.ends(ctx)
		if err != nil {
			return full, err
		}

		now := int64(0)
		for _, end := range ends {
			now += end
		}

		switch still := time.Since(full); {
		case now > length:
			full, length = time.Now(), now
		case length >= int64(events) && still > fullAfter:
			return full, nil
		case still > stall:
			return full, fmt.Errorf("nothing was sent for %s, with %d of %d events in the topic",
				stall, length, events)
		}
		rig.Wait(ctx, time.Now().Add(10*time.Millisecond))
	}
}

// scan reads all that is committed and counts it.
func (t *topic) scan(ctx context.Context, events int) (*tally, error) {
	ends, err := t.ends(ctx)
	if err != nil {
		return nil, err
	}

	client, err := rig.Consumer(t.brokers, t.name, kgo.KeepControlRecords()) // the end may be a marker
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("it took more than two minutes"))
	defer cancel()

	// Read up to where the topic ends now. Empty partitions have nothing to wait for.
	count := newTally(events)
	for {
		for partition, end := range ends {
			if end == 0 {
				delete(ends, partition)
			}
		}

		if len(ends) == 0 {
			return count, nil
		}

		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read the topic: %w", context.Cause(ctx))
		}
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read the topic: %w", err)
		}

		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= ends[r.Partition] {
				ends[r.Partition] = 0
			}
			if r.Attrs.IsControl() {
				return
			}

			count.record(string(r.Key), numberOf(r.Value), r.Partition)
			if !r.Attrs.IsTransactional() {
				count.outside++
			}
		})
	}
}

// tally counts, event by event in the order of the topic, what should not be there and what should.
// Events are numbered from 0, and those of one key were committed in the order of their numbers.
type tally struct {
	seen []bool
	last map[string]placed

	distinct, duplicates, outOfOrder, strange int
	outside                                   int // records that came outside of a Kafka transaction
}

// placed is the newest event of a key, and its partition.
type placed struct {
	number    int
	partition int32
}

func newTally(events int) *tally {
	return &tally{seen: make([]bool, events), last: map[string]placed{}}
}

// record counts one record. A repetition counts as that alone, wherever it is: consumers discard it
// by its id.
func (t *tally) record(key string, number int, partition int32) {
	switch {
	case number < 0 || number >= len(t.seen):
		t.strange++
		return
	case t.seen[number]:
		t.duplicates++
		return
	}

	t.seen[number] = true
	t.distinct++

	// There is no order between partitions, so a key in two of them has none either.
	before, known := t.last[key]
	if known && (number < before.number || partition != before.partition) {
		t.outOfOrder++
	}
	if !known || number > before.number {
		t.last[key] = placed{number, partition}
	}
}

func (t *tally) missing() int { return len(t.seen) - t.distinct }

// err says why a figure measured on this topic is no result. Order is promised by our relay alone,
// which has a delivery, and duplicates are counted, not forbidden.
func (t *tally) err(delivery string) error {
	switch {
	case t.missing() > 0:
		return fmt.Errorf("no result: %d of %d events are missing", t.missing(), len(t.seen))
	case t.strange > 0:
		return fmt.Errorf("no result: %d records that the benchmark did not write", t.strange)
	case delivery != "" && t.outOfOrder > 0:
		return fmt.Errorf("no result: %d of %d events are out of order within their aggregate",
			t.outOfOrder, len(t.seen))
	case delivery == exactlyOnce.delivery && t.outside > 0:
		return fmt.Errorf("no result: %d records came outside of the transactions asked for", t.outside)
	}

	return nil
}

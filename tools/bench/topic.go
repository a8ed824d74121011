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

	"github.com/oncepay/oncepay/internal/process"
)

const (
	topicPartitions = 12
	// fullAfter is how long a topic must not grow any more before it is taken for complete. It is not part of what is measured.
	fullAfter = 700 * time.Millisecond
	// stall is how long a relay may send nothing while events are missing.
	stall = 30 * time.Second
)

// topic is where one measurement sends its events. Each has its own, and it is deleted afterwards.
type topic struct {
	brokers []string
	prefix  string
	client  *kgo.Client
	admin   *kadm.Client
}

func makeTopic(ctx context.Context, brokers []string, prefix string) (*topic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	t := &topic{brokers: brokers, prefix: prefix, client: client, admin: kadm.NewClient(client)}
	made, err := t.admin.CreateTopics(ctx, topicPartitions, -1, nil, t.name())
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("make topic %s: %w", t.name(), err)
	}
	// A broker says that it made a topic before every one knows its partitions.
	for deadline := time.Now().Add(10 * time.Second); ; wait(ctx, time.Now().Add(20*time.Millisecond)) {
		ends, err := t.ends(ctx)
		if err == nil && len(ends) == topicPartitions {
			return t, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			client.Close()
			return nil, errors.Join(fmt.Errorf("make topic %s: it has %d partitions", t.name(), len(ends)), err)
		}
	}
}

func (t *topic) name() string { return t.prefix + "payments" }

// remove deletes the topic, and what else the relay made under its prefix.
func (t *topic) remove(ctx context.Context) error {
	defer t.client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	all, err := t.admin.ListTopicsWithInternal(ctx)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	names := slices.DeleteFunc(all.Names(), func(name string) bool { return !strings.HasPrefix(name, t.prefix) })
	if len(names) == 0 {
		return nil
	}
	gone, err := t.admin.DeleteTopics(ctx, names...)
	if err == nil {
		err = gone.Error()
	}
	if err != nil {
		return fmt.Errorf("delete topics: %w", err)
	}
	return nil
}

// ends returns how far a read_committed reader can read, by partition.
func (t *topic) ends(ctx context.Context) (map[int32]int64, error) {
	listed, err := t.admin.ListCommittedOffsets(ctx, t.name())
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("look how far the topic goes: %w", err)
	}
	ends := map[int32]int64{}
	for partition, o := range listed[t.name()] {
		ends[partition] = o.Offset
	}
	return ends, nil
}

// await returns when the topic reached its full length, to some ten milliseconds. It asks for the length only: a consumer would take processor time
// from what is measured. Markers of transactions count, so that it may be longer than there are events; that it no longer grows is part of the
// answer.
func (t *topic) await(ctx context.Context, events int, relay *process.Process) (complete time.Time, err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	grown, length := time.Now(), int64(0)
	for {
		ends, err := t.ends(ctx)
		if err != nil {
			return grown, err
		}
		var now int64
		for _, end := range ends {
			now += end
		}
		switch still := time.Since(grown); {
		case now > length:
			grown, length = time.Now(), now
		case length >= int64(events) && still > fullAfter:
			return grown, nil
		case still > stall:
			relay.Stop()
			return grown, fmt.Errorf("nothing was sent for %s, with %d of %d events in the topic: %w", stall, length, events, relay.Err())
		}
		select {
		case <-tick.C:
		case <-relay.Ended:
			return grown, relay.Err()
		case <-ctx.Done():
			return grown, context.Cause(ctx)
		}
	}
}

// consumer reads the topic from its beginning as a read_committed reader.
func (t *topic) consumer(more ...kgo.Opt) (*kgo.Client, error) {
	client, err := kgo.NewClient(append(more, kgo.SeedBrokers(t.brokers...), kgo.ConsumeTopics(t.name()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	return client, nil
}

// scan reads all that is committed and counts it.
func (t *topic) scan(ctx context.Context, events int) (*tally, error) {
	// Markers of transactions are asked for because the end may be one.
	client, err := t.consumer(kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ends, err := t.ends(ctx)
	if err != nil {
		return nil, err
	}
	for partition, end := range ends {
		if end == 0 {
			delete(ends, partition)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("the topic was not read within two minutes"))
	defer cancel()
	count := newTally(events)
	for len(ends) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read the topic: %w", context.Cause(ctx))
		}
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read the topic: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= ends[r.Partition] {
				delete(ends, r.Partition)
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
	return count, nil
}

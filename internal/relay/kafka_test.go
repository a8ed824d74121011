package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

func client(t testing.TB, brokers []string, topics ...string) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topics...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// records reads the first n records of the client's topics.
func records(t testing.TB, c *kgo.Client, n int) (got []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for len(got) < n && ctx.Err() == nil {
		c.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got = append(got, r) })
	}
	if len(got) < n {
		t.Fatalf("%d records of %d within %s", len(got), n, soon)
	}
	return got
}

func TestRecordIsCloudEvent(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
	p, _, err := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, Source: "/test"}.Open(t.Context(), "main", "")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	id, version := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057"), int64(7)
	m := relay.Message{
		EventID: id, AggregateType: "things", AggregateID: "a", AggregateVersion: &version, Type: "thing.changed",
		Payload:   []byte("{ \"ü\":\t1.0, \"a\": 1e2 }\x00\xff"),
		Headers:   []byte(`{"traceparent": "` + traceparent + `", "ce_id": "an id of the row's own must not hide the event's"}`),
		CreatedAt: time.Date(2026, 3, 29, 3, 30, 0, 120_000_000, time.FixedZone("", 2*60*60)),
	}
	bare := m
	bare.AggregateVersion, bare.Headers, bare.Payload = nil, []byte(`{"n": [7, null]}`), []byte{}
	if err := p.Publish(t.Context(), []relay.Message{m, bare}, relay.Progress{}); err != nil {
		t.Fatal(err)
	}
	got := records(t, client(t, brokers, prefix+"things"), 2)
	common := []kgo.RecordHeader{
		{Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "ce_id", Value: []byte(id.String())},
		{Key: "ce_source", Value: []byte("/test")},
		{Key: "ce_type", Value: []byte("thing.changed")},
		{Key: "ce_subject", Value: []byte("a")},
		{Key: "ce_time", Value: []byte("2026-03-29T01:30:00.12Z")},
		{Key: "ce_sequence", Value: []byte("7")},
		{Key: "traceparent", Value: []byte(traceparent)},
		{Key: "content-type", Value: []byte("application/json")},
	}
	if diff := cmp.Diff(common, got[0].Headers); diff != "" {
		t.Error(diff)
	}
	byHand := kgo.RecordHeader{Key: "n", Value: []byte("[7,null]")} // a row written in SQL may hold any JSON
	if diff := cmp.Diff(append(common[:6:6], byHand, common[8]), got[1].Headers); diff != "" {
		t.Error(diff)
	}
	for i, want := range [][]byte{m.Payload, bare.Payload} {
		if r := got[i]; string(r.Key) != "a" || string(r.Value) != string(want) || r.Value == nil || r.Partition != got[0].Partition {
			t.Errorf("record %d: key %q, value %q, partition %d", i, r.Key, r.Value, r.Partition)
		}
	}
}

func TestOpenMakesMissingTopicsOnly(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
	admin := kadm.NewClient(client(t, brokers))
	if _, err := admin.CreateTopic(t.Context(), 3, 1, nil, prefix+"old"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p, _, err := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"old", "new"}}.Open(t.Context(), "main", "")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
	}
	testenv.Eventually(t, soon, func() error { // a broker tells of what it has just made a little later
		topics, err := admin.ListTopics(t.Context(), prefix+"old", prefix+"new")
		if err != nil {
			return err
		}
		if old, made := len(topics[prefix+"old"].Partitions), len(topics[prefix+"new"].Partitions); old != 3 || made != 12 {
			return fmt.Errorf("%d and %d partitions, want 3 and 12", old, made)
		}
		return nil
	})
}

func TestBrokerOutageLosesNothing(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	var away atomic.Bool
	refused := make(chan struct{}, 10_000)
	cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if !away.Load() {
			return nil, nil, false
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return nil, errors.New("away"), true
	})
	kafka := kafka.Producer{Brokers: cluster.ListenAddrs(), Topics: []string{"things"}}
	start(t, d.relay, kafka.Open, nil)
	want := d.commit(t, "a", "b")
	records(t, client(t, cluster.ListenAddrs(), "things"), 2)
	away.Store(true)
	want = append(want, d.commit(t, "a", "b", "a")...)
	next(t, refused, "a request to the broker that is away")
	want = append(want, d.commit(t, "b")...)
	away.Store(false)
	got := records(t, client(t, cluster.ListenAddrs(), "things"), len(want))
	last, missing := map[string]string{}, map[string]bool{}
	for _, id := range want {
		missing[id.String()] = true
	}
	for _, r := range got {
		id, sequence, key := string(r.Headers[1].Value), string(r.Headers[6].Value), string(r.Key)
		if missing[id] && sequence <= last[key] {
			t.Errorf("%s: sequence %s behind %s", key, sequence, last[key])
		}
		delete(missing, id)
		last[key] = max(last[key], sequence)
	}
	if len(missing) > 0 {
		t.Errorf("%d of %d events are lost", len(missing), len(want))
	}
}

// What is on its way cannot be called back, but its answer may never come.
func TestPublishEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	ctx, cancel := context.WithCancel(t.Context())
	p, _, err := kafka.Producer{Brokers: cluster.ListenAddrs(), Topics: []string{"things"}}.Open(t.Context(), "main", "")
	if err != nil {
		t.Fatal(err)
	}
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		cancel()
		return nil, nil, true // no answer
	})
	done := make(chan error, 1)
	go func() {
		done <- p.Publish(ctx, []relay.Message{{AggregateType: "things", AggregateID: "a"}}, relay.Progress{})
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Publish returned nil")
		}
	case <-time.After(soon):
		t.Error("Publish is still waiting long after its context ended")
	}
	p.Close()
}

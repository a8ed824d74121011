package relay_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// resenders makes a Publisher of a relay, and a Resender beside it.
func resenders(t *testing.T, exactlyOnce bool) (kafka.Producer, relay.Publisher, *kafka.Resender) {
	t.Helper()
	k := kafka.Producer{Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t),
		Topics: []string{"things"}, Source: "/test", ExactlyOnce: exactlyOnce,
		Options: fastMetadata}
	p, _, err := k.Open(t.Context(), "main", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	r, err := k.OpenResender(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)

	// A broker may not know for a moment what it has just made.
	admin, err := kadm.NewOptClient(kgo.SeedBrokers(k.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	testenv.Eventually(t, soon, func() error {
		listed, err := admin.ListTopics(t.Context(), k.TopicPrefix+"things")
		if err != nil {
			return err
		}
		return listed.Error()
	})
	return k, p, r
}

func changesOf(aggregates ...string) (ms []relay.Message) {
	for _, a := range aggregates {
		ms = append(ms, relay.Message{
			EventID: uuid.New(), AggregateType: "things", AggregateID: a, Type: "thing.changed",
			Payload: []byte(`{}`), Headers: []byte(`{"traceparent": "x"}`),
		})
	}
	return ms
}

func TestResentRecordsAreThoseOfTheRelay(t *testing.T) {
	t.Parallel()
	eachDelivery(t, func(t *testing.T, exactlyOnce bool) {
		k, p, r := resenders(t, exactlyOnce)
		first, second := changesOf("a", "b", "c", "d", "e"), changesOf("a")
		if err := p.Publish(t.Context(), first, relay.Progress{Position: relay.Position{Batches: 1}}); err != nil {
			t.Fatal(err)
		}
		if err := r.Send(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		// The relay is not fenced.
		if err := p.Publish(t.Context(), second, relay.Progress{Position: relay.Position{Batches: 2}}); err != nil {
			t.Fatal(err)
		}

		type sent struct {
			partition  int32
			key, value string
			headers    []kgo.RecordHeader
		}
		got := map[string][]sent{}
		for _, record := range records(t, client(t, k.Brokers, k.TopicPrefix+"things"), 2*5+1) {
			id := string(record.Headers[1].Value)
			got[id] = append(got[id], sent{record.Partition, string(record.Key), string(record.Value),
				record.Headers})
		}
		for _, m := range first {
			same := got[m.EventID.String()]
			if len(same) != 2 {
				t.Fatalf("%d records of %s", len(same), m.EventID)
			}
			if diff := cmp.Diff(same[0], same[1], cmp.AllowUnexported(sent{})); diff != "" {
				t.Errorf("(-relay +resend):\n%s", diff)
			}
		}
		if n := len(got[second[0].EventID.String()]); n != 1 {
			t.Errorf("%d records of the relay's next event", n)
		}
	})
}

// What cannot be sent is named, and what is behind it stays unsent.
func TestResenderNamesWhatItCannotSend(t *testing.T) {
	t.Parallel()
	k, _, r := resenders(t, false)
	large := changesOf("a", "b")
	large[1].Payload = make([]byte, 2<<20)
	var refused *relay.BatchError
	if err := r.Send(t.Context(), large); !errors.As(err, &refused) || !refused.Refused || refused.Index != 1 {
		t.Errorf("an event that is too large: %v", err)
	}

	unknown := changesOf("a")
	unknown[0].AggregateType = "unheard-of"
	var topic *relay.TopicError
	err := r.Send(t.Context(), unknown)
	if !errors.As(err, &topic) || topic.Topic != k.TopicPrefix+"unheard-of" ||
		!errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("a topic that is missing: %v", err)
	}

	// Partitions are added while it sends.
	if err := r.Send(t.Context(), changesOf("a")); err != nil {
		t.Fatal(err)
	}
	grow(t, k, k.TopicPrefix+"things", 24)
	var changed *relay.PartitionsError
	testenv.Eventually(t, soon, func() error {
		if err := r.Send(t.Context(), changesOf("a")); !errors.As(err, &changed) {
			return errors.New("it goes on")
		}
		return nil
	})
	if changed.Sent != 12 || changed.Now != 24 {
		t.Errorf("%+v", changed)
	}
}

func TestResenderNeedsABroker(t *testing.T) {
	t.Parallel()
	if _, err := (kafka.Producer{Brokers: []string{"127.0.0.1:1"}}).OpenResender(t.Context()); err == nil {
		t.Error("it opens without a broker")
	}
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// smallTopic is the most that a topic takes in these tests until it is raised. Events fit into it but for large ones.
const smallTopic = "20000"

// large is a payload that no compressor makes small.
func large() []byte {
	random, payload := rand.NewChaCha8([32]byte{1}), make([]byte, 50_000)
	_, _ = random.Read(payload)
	return payload
}

// append commits one event of a kind of aggregates.
func (d database) append(t testing.TB, kind, aggregate string, payload []byte) uuid.UUID {
	t.Helper()
	tx := d.begin(t)
	e := outbox.Event{ID: uuid.Must(uuid.NewV7()), AggregateType: kind, AggregateID: aggregate, AggregateVersion: 1, Type: "thing.changed", Payload: payload}
	if err := outbox.Append(t.Context(), tx, []outbox.Event{e}); err != nil {
		t.Fatal(err)
	}
	commit(t, tx)
	return e.ID
}

func createTopic(t testing.TB, brokers []string, topic string) {
	t.Helper()
	if _, err := kadm.NewClient(client(t, brokers)).CreateTopic(t.Context(), 3, 1, map[string]*string{"max.message.bytes": kadm.StringPtr("1048588")}, topic); err != nil {
		t.Fatal(err)
	}
}

// limitTopic sets how large a record of a topic may be, and waits until the broker goes by it.
func limitTopic(t testing.TB, brokers []string, topic, most string) {
	t.Helper()
	c := client(t, brokers)
	_, err := kadm.NewClient(c).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr(most)}}, topic)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error {
		err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte("probe"), Value: large()}).FirstErr()
		if most == smallTopic && errors.Is(err, kerr.MessageTooLarge) || most != smallTopic && err == nil {
			return nil
		}
		return fmt.Errorf("a large record, where %s bytes are allowed: it was taken: %t", most, err == nil)
	})
}

// topic follows a topic as a reader with read_committed.
type topic struct {
	client *kgo.Client
	got    map[string][]uuid.UUID // by aggregate, repeats left out
}

func follow(t testing.TB, brokers []string, name string) *topic {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(name), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(50*time.Millisecond), kgo.MetadataMaxAge(200*time.Millisecond)) // topics come later than their readers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &topic{c, map[string][]uuid.UUID{}}
}

// waitFor waits until these events of an aggregate have come, and no others, in this order.
func (r *topic) waitFor(t testing.TB, aggregate string, want ...uuid.UUID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for len(r.got[aggregate]) < len(want) && ctx.Err() == nil {
		r.client.PollFetches(ctx).EachRecord(func(record *kgo.Record) {
			for _, h := range record.Headers {
				if id, key := string(h.Value), string(record.Key); h.Key == "ce_id" && !slices.Contains(r.got[key], uuid.MustParse(id)) {
					r.got[key] = append(r.got[key], uuid.MustParse(id))
				}
			}
		})
	}
	if diff := cmp.Diff(want, r.got[aggregate]); diff != "" {
		t.Fatalf("events of %s (-want +got):\n%s", aggregate, diff)
	}
}

// waitForLast is waitFor when some had gone ahead: they may stand in front, out of order.
func (r *topic) waitForLast(t testing.TB, aggregate string, ahead []uuid.UUID, want ...uuid.UUID) {
	t.Helper()
	isAhead := func(id uuid.UUID) bool { return slices.Contains(ahead, id) }
	r.got[aggregate] = slices.DeleteFunc(r.got[aggregate], isAhead)
	r.waitFor(t, aggregate, want...)
}

func TestLargeEventIsDeadLetterUntilDecision(t *testing.T) {
	t.Parallel()
	for _, once := range []bool{false, true} {
		for _, refuses := range []string{"relay", "broker"} { // the one that knows the limit; the broker when it was lowered under a relay that runs
			for _, decision := range []string{"retry", "skip"} {
				t.Run(fmt.Sprintf("exactly once %t, the %s refuses, %s", once, refuses, decision), func(t *testing.T) {
					t.Parallel()
					d, brokers, prefix := newDatabase(t), testenv.Brokers(t), testenv.TopicPrefix(t)
					kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: once}
					createTopic(t, brokers, prefix+"things")
					things := follow(t, brokers, prefix+"things")
					if refuses == "relay" {
						limitTopic(t, brokers, prefix+"things", smallTopic)
					}
					start(t, d.relay, kafka.Open, func(r *relay.Relay) {
						r.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
					})
					first := d.append(t, "things", "a", []byte("1"))
					things.waitFor(t, "a", first)
					if refuses == "broker" {
						limitTopic(t, brokers, prefix+"things", smallTopic)
					}
					a := []uuid.UUID{first, d.append(t, "things", "a", []byte("2"))}
					b := []uuid.UUID{d.append(t, "things", "b", []byte("1")), d.append(t, "things", "b", large()), d.append(t, "things", "b", []byte("3"))}
					testenv.Eventually(t, soon, func() error {
						if got := letters(t, d); len(got) != 1 || got[0].EventID != b[1] {
							return fmt.Errorf("dead letters: %+v, want %s", got, b[1])
						}
						return nil
					})
					b = append(b, d.append(t, "things", "b", []byte("4")))
					a = append(a, d.append(t, "things", "a", []byte("3")))
					things.waitFor(t, "a", a...)
					testenv.Eventually(t, soon, func() error {
						if got := letters(t, d); len(got) != 1 || got[0].Waiting != 3 {
							return fmt.Errorf("dead letters: %+v", got)
						}
						return nil
					})
					letter := letters(t, d)[0]
					if letter.EventID != b[1] || letter.State != "parked" || !strings.Contains(letter.Refusal, "MESSAGE_TOO_LARGE") || letter.Bytes != 50_000 {
						t.Errorf("dead letter: %+v", letter)
					}
					if len(things.got["b"]) > 0 && things.got["b"][0] != b[0] || slices.Contains(things.got["b"], b[1]) {
						t.Errorf("of the parked aggregate arrived: %v", things.got["b"])
					}
					if once {
						things.waitFor(t, "b", b[0]) // of another partition than a: it may come later
					}

					var err error
					if decision == "retry" {
						limitTopic(t, brokers, prefix+"things", "1048588")
						err = relay.RetryDeadLetter(t.Context(), d.relay, "main", letter.ID)
					} else {
						err = relay.SkipDeadLetter(t.Context(), d.relay, "main", letter.ID, "told by telephone")
						b = slices.Delete(b, 1, 2)
					}
					if err != nil {
						t.Fatal(err)
					}
					b = append(b, d.append(t, "things", "b", []byte("5")))
					things.waitForLast(t, "b", letter.WentAhead, b...)
					testenv.Eventually(t, soon, func() error {
						if got := letters(t, d)[0]; got.Waiting != 0 || got.State != map[string]string{"retry": "sent", "skip": "skipped"}[decision] ||
							got.Note != map[string]string{"skip": "told by telephone"}[decision] || got.Refusal != letter.Refusal {
							return fmt.Errorf("dead letter: %+v", got)
						}
						return nil
					})
				})
			}
		}
	}
}

// A topic that is missing, or that may not be written to, is an outage for all: nothing is skipped and nothing parked.
func TestMissingTopicHoldsUpBatch(t *testing.T) {
	t.Parallel()
	for _, once := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once %t", once), func(t *testing.T) {
			t.Parallel()
			d, brokers, prefix := newDatabase(t), testenv.Brokers(t), testenv.TopicPrefix(t)
			things := follow(t, brokers, prefix+"things")
			kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: once}
			r := start(t, d.relay, kafka.Open, func(r *relay.Relay) { r.Batch = 2 })
			a := []uuid.UUID{d.append(t, "things", "a", []byte("1"))}
			things.waitFor(t, "a", a...)
			o := []uuid.UUID{d.append(t, "others", "o", []byte("1")), d.append(t, "others", "o", []byte("2"))}
			a = append(a, d.append(t, "things", "a", []byte("2")))
			outage(t, r, prefix+"others", kerr.UnknownTopicOrPartition)
			if got := letters(t, d); len(got) > 0 {
				t.Errorf("dead letters: %+v", got)
			}
			if last := ask[int64](t, d, `SELECT last_id FROM outbox_cursors`); last != 1 {
				t.Errorf("the cursor stands at %d", last)
			}
			createTopic(t, brokers, prefix+"others")
			follow(t, brokers, prefix+"others").waitFor(t, "o", o...)
			things.waitFor(t, "a", a...)
		})
	}
}

func TestForbiddenTopicHoldsUpBatch(t *testing.T) {
	t.Parallel()
	for _, once := range []bool{false, true} {
		for _, key := range []kmsg.Key{kmsg.Produce, kmsg.Metadata} { // without the right to write; without that to know of it
			t.Run(fmt.Sprintf("exactly once %t, %s", once, key.Name()), func(t *testing.T) {
				t.Parallel()
				d := newDatabase(t)
				cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(cluster.Close)
				brokers := cluster.ListenAddrs()
				things, others := follow(t, brokers, "things"), follow(t, brokers, "others")
				kafka := kafka.Producer{Brokers: brokers, Topics: []string{"things", "others"}, ExactlyOnce: once}
				r := start(t, d.relay, kafka.Open, func(r *relay.Relay) { r.Batch = 2 })
				a := []uuid.UUID{d.append(t, "things", "a", []byte("1"))}
				things.waitFor(t, "a", a...)
				denied := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: "others", Err: kerr.TopicAuthorizationFailed, Count: -1})
				o := []uuid.UUID{d.append(t, "others", "o", []byte("1")), d.append(t, "others", "o", []byte("2"))}
				a = append(a, d.append(t, "things", "a", []byte("2")))
				outage(t, r, "others", kerr.TopicAuthorizationFailed)
				outage(t, r, "others", kerr.TopicAuthorizationFailed) // of the term that sent it, and of the next one
				if got := letters(t, d); len(got) > 0 {
					t.Errorf("dead letters: %+v", got)
				}
				if last := ask[int64](t, d, `SELECT last_id FROM outbox_cursors`); last != 1 {
					t.Errorf("the cursor stands at %d", last)
				}
				denied.Remove()
				others.waitFor(t, "o", o...)
				things.waitFor(t, "a", a...)
			})
		}
	}
}

// outage waits until the relay has said what is wrong with a topic.
func outage(t testing.TB, r run, topic string, reason error) {
	t.Helper()
	err := next(t, r.errors, "the relay to report an outage")
	var of *relay.TopicError
	if !errors.As(err, &of) || of.Topic != topic || !errors.Is(err, reason) || !strings.Contains(err.Error(), topic) {
		t.Fatalf("reported: %v", err)
	}
}

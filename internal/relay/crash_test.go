package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// A relay that dies at each step, and the one that follows it, on a real broker (`make test`: kfake, which keeps transactions, fences and
// hides what was aborted as Kafka does; `make test-containers`: Apache Kafka), with both deliveries.

// crashPublisher makes a relay die: it no longer returns or answers, and its connections to the database are cut. Its
// client of Kafka stays open, as that of a zombie does.
type crashPublisher struct {
	relay.Publisher
	before    bool          // it dies before the second batch is published; else after that
	onFirst   func()        // before the first batch
	published int           // batches that were acknowledged
	dead      chan struct{} // closed when it has died
	over      chan struct{} // closed when the test is
}

func (p *crashPublisher) Publish(ctx context.Context, batch []relay.Message, next relay.Progress) error {
	switch {
	case p.published == 0:
		p.onFirst()
	case p.before:
		return p.die()
	}
	err := p.Publisher.Publish(ctx, batch, next)
	if err == nil {
		p.published++
	}
	if p.published == 2 {
		return p.die()
	}
	return err
}

func (p *crashPublisher) die() error {
	close(p.dead)
	<-p.over
	return errors.New("it is dead")
}

func TestRelayThatDiesAtAnyStepLosesNothing(t *testing.T) {
	t.Parallel()
	const size = 4 // of a batch
	for _, step := range []struct {
		name     string
		before   bool // it has published its second batch
		held     bool // the cursor does not move behind the first
		repeated int  // batches, with at-least-once
	}{
		{"between two batches", true, false, 0},
		{"after a batch was acknowledged, before the cursor moved", false, false, 1},
		// Progress of the first went out with the second: without it both would be repeated.
		{"after two batches were acknowledged, while the cursor moved behind the first", false, true, 1},
	} {
		for _, delivery := range []string{"at least once", "exactly once"} {
			t.Run(step.name+", "+delivery, func(t *testing.T) {
				t.Parallel()
				d, brokers, prefix := newDatabase(t), testenv.Brokers(t), testenv.TopicPrefix(t)
				kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: delivery == "exactly once"}
				var want []uuid.UUID
				for range 3 {
					want = append(want, d.commit(t, "a", "b", "a", "c")...)
				}
				small := func(r *relay.Relay) { r.Batch = size }
				release := func() {}
				dying := &crashPublisher{before: step.before, dead: make(chan struct{}), over: make(chan struct{}), onFirst: sync.OnceFunc(func() {
					if step.held {
						release = d.holdCursor(t)
					}
				})}
				start(t, d.doomed(t), func(ctx context.Context, relay, cursor string) (_ relay.Publisher, kept *relay.Progress, err error) {
					dying.Publisher, kept, err = kafka.Open(ctx, relay, cursor)
					return dying, kept, err
				}, small)
				t.Cleanup(func() { close(dying.over) })
				next(t, dying.dead, "the relay's death")
				if !step.held {
					d.movedTo(t, 1) // it died after that
				}
				d.exec(t, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'doomed' AND datname = current_database()`)
				release()
				d.exec(t, `UPDATE outbox_cursors SET lease_until = '-infinity'`) // it has run out
				follower := start(t, d.relay, kafka.Open, small)
				want = append(want, d.commit(t, "a", "b", "c")...)
				d.sentAll(t)
				if err := follower.stop(); err != nil {
					t.Fatal(err)
				}
				repeats := firstsAreInOrder(t, readTopic(t, brokers, prefix+"things", kgo.ReadCommitted()), want)
				expected := step.repeated * size
				if kafka.ExactlyOnce {
					expected = 0
				}
				if repeats != expected {
					t.Errorf("%d events are there twice, want %d", repeats, expected)
				}
			})
		}
	}
}

// TestKafkaTransactionOfDeadRelayIsUnseen: records are on the topic, their transaction is not committed.
func TestKafkaTransactionOfDeadRelayIsUnseen(t *testing.T) {
	t.Parallel()
	d, brokers, prefix := newDatabase(t), testenv.Brokers(t), testenv.TopicPrefix(t)
	kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: true}
	first := start(t, d.relay, kafka.Open, nil)
	want := d.commit(t, "a", "b", "a")
	d.sentAll(t)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	// What a relay leaves that dies there. Its client lives on.
	zombie, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(prefix+"relay.main."+d.cursorID(t)), kgo.DefaultProduceTopic(prefix+"things"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zombie.Close)
	if err := zombie.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	want = append(want, d.commit(t, "a", "b")...)
	for i, key := range []string{"a", "b"} {
		id := kgo.RecordHeader{Key: "ce_id", Value: []byte(want[3+i].String())}
		if err := zombie.ProduceSync(t.Context(), &kgo.Record{Key: []byte(key), Headers: []kgo.RecordHeader{id}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	second := start(t, d.relay, kafka.Open, nil)
	d.sentAll(t)
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	if err := zombie.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Error("the zombie's transaction was committed")
	}
	if repeats := firstsAreInOrder(t, readTopic(t, brokers, prefix+"things", kgo.ReadCommitted()), want); repeats > 0 {
		t.Errorf("readers with read_committed see %d events twice", repeats)
	}
	if repeats := firstsAreInOrder(t, readTopic(t, brokers, prefix+"things", kgo.ReadUncommitted()), want); repeats != 2 {
		t.Errorf("readers with read_uncommitted see %d events twice, want the 2 of the transaction that was aborted", repeats)
	}
}

func TestZombieOfSameNameIsFenced(t *testing.T) {
	t.Parallel()
	brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
	kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: true}
	zombie, _ := open(t, kafka)
	before, late, after := things("a"), things("a", "b"), things("a")
	if err := zombie.Publish(t.Context(), before, behind(1)); err != nil {
		t.Fatal(err)
	}
	successor, kept := open(t, kafka)
	if diff := cmp.Diff(new(behind(1)), kept); diff != "" {
		t.Errorf("progress that the successor finds (-want +got):\n%s", diff)
	}
	err := zombie.Publish(t.Context(), late, behind(2))
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidTxnState) && !errors.Is(err, kerr.InvalidProducerIDMapping) {
		t.Errorf("the zombie was not fenced: %v", err)
	}
	if err := successor.Publish(t.Context(), after, behind(2)); err != nil {
		t.Fatal(err)
	}
	if repeats := firstsAreInOrder(t, readTopic(t, brokers, prefix+"things", kgo.ReadCommitted()), []uuid.UUID{before[0].EventID, after[0].EventID}); repeats > 0 {
		t.Errorf("%d events are there twice", repeats)
	}
}

// Progress is found whatever lies around it: much of it, that of others, and a transaction that was aborted behind it.
func TestOpenFindsProgressAmongOtherRecords(t *testing.T) {
	t.Parallel()
	for _, exactlyOnce := range []bool{false, true} {
		t.Run(fmt.Sprintf("exactly once %t", exactlyOnce), func(t *testing.T) {
			t.Parallel()
			brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)
			kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: exactlyOnce}
			p, kept := open(t, kafka)
			if kept != nil {
				t.Errorf("progress of nobody: %+v", kept)
			}
			for n := int64(1); n <= 3; n++ {
				if err := p.Publish(t.Context(), nil, behind(n)); err != nil {
					t.Fatal(err)
				}
			}
			p.Close()
			other, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(prefix+"another"), kgo.DefaultProduceTopic(prefix+"relay-progress.main"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(other.Close)
			for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
				if err := other.BeginTransaction(); err != nil {
					t.Fatal(err)
				}
				key := "main" // what is aborted never was
				if end == kgo.TryCommit {
					key = "another"
				}
				var many []*kgo.Record
				for range 20_000 {
					many = append(many, &kgo.Record{Key: []byte(key), Value: []byte(`{"batches": 99, "seen": "` + strings.Repeat("1", 100) + `"}`)})
				}
				if err := other.ProduceSync(t.Context(), many...).FirstErr(); err != nil {
					t.Fatal(err)
				}
				if err := other.EndTransaction(t.Context(), end); err != nil {
					t.Fatal(err)
				}
			}
			_, kept = open(t, kafka)
			if diff := cmp.Diff(new(behind(3)), kept); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Either delivery goes on where the other ended.
func TestDeliveryCanChangeBetweenRuns(t *testing.T) {
	t.Parallel()
	d, brokers, prefix := newDatabase(t), testenv.Brokers(t), testenv.TopicPrefix(t)
	var want []uuid.UUID
	for _, exactlyOnce := range []bool{false, true, false, true} {
		kafka := kafka.Producer{Brokers: brokers, TopicPrefix: prefix, Topics: []string{"things"}, ExactlyOnce: exactlyOnce}
		r := start(t, d.relay, kafka.Open, nil)
		want = append(want, d.commit(t, "a", "b", "a")...)
		d.sentAll(t)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if repeats := firstsAreInOrder(t, readTopic(t, brokers, prefix+"things", kgo.ReadCommitted()), want); repeats > 0 {
		t.Errorf("%d events are there twice", repeats)
	}
}

// doomed opens a pool whose connections can be told from others.
func (d database) doomed(t testing.TB) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(d.URLAs("relay"))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = "doomed"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// holdCursor lets nobody change the cursor's row until release is called.
func (d database) holdCursor(t testing.TB) (release func()) {
	t.Helper()
	tx := d.begin(t)
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox_cursors FOR UPDATE`); err != nil {
		t.Error(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}

func (d database) movedTo(t testing.TB, batches int64) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		if at := ask[int64](t, d, `SELECT batches FROM outbox_cursors`); at != batches {
			return fmt.Errorf("the cursor is behind %d batches, want %d", at, batches)
		}
		return nil
	})
}

// sentAll waits until the cursor is behind all events, also those that committed late, below its id.
func (d database) sentAll(t testing.TB) {
	t.Helper()
	const unsent = `SELECT count(*) FROM outbox_events o WHERE NOT EXISTS (
		SELECT FROM outbox_cursors c WHERE o.id <= c.last_id AND pg_visible_in_snapshot(o.xid, c.seen))`
	testenv.Eventually(t, soon, func() error {
		if n := ask[int64](t, d, unsent); n != 0 {
			return fmt.Errorf("%d events are still to be sent", n)
		}
		return nil
	})
}

// readTopic reads all of a topic that a reader of this isolation level ever sees. No transaction is left open on it.
func readTopic(t testing.TB, brokers []string, topic string, isolation kgo.IsolationLevel) (records []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(isolation),
		kgo.KeepControlRecords()) // a partition may end in one, and would never seem read
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
		}
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("partitions that could not be read to their ends: %v", left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return records
}

// firstsAreInOrder looks at what stands first of each event: none is missing, none is unknown, and those of one aggregate are in the
// order of want. It returns how many records are repeats.
func firstsAreInOrder(t testing.TB, records []*kgo.Record, want []uuid.UUID) (repeats int) {
	t.Helper()
	seen, newest := map[uuid.UUID]bool{}, map[string]int{}
	for _, r := range records {
		i := slices.IndexFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == "ce_id" })
		id := uuid.MustParse(string(r.Headers[i].Value))
		if seen[id] {
			repeats++
			continue
		}
		place := slices.Index(want, id)
		if place < 0 {
			t.Errorf("event %s of %s is unknown", id, r.Key)
		}
		if last, is := newest[string(r.Key)]; is && place < last {
			t.Errorf("event %d of %s comes behind event %d", place, r.Key, last)
		}
		seen[id], newest[string(r.Key)] = true, place
	}
	if len(seen) != len(want) {
		t.Errorf("%d events of %d arrived", len(seen), len(want))
	}
	return repeats
}

package relay_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/testenv"
)

// TestOpenReadsTheEndOnly: what a long history makes slow is reading it.
func TestOpenReadsTheEndOnly(t *testing.T) {
	t.Parallel()
	eachDelivery(t, func(t *testing.T, exactlyOnce bool) {
		const batches = 500
		cluster, k := newCluster(t)
		k.ExactlyOnce = exactlyOnce
		p, _ := open(t, k)
		for n := int64(1); n <= batches; n++ {
			if err := p.Publish(t.Context(), nil, behind(n)); err != nil {
				t.Fatal(err)
			}
		}
		p.Close()

		var lowest atomic.Int64
		lowest.Store(1 << 40)
		cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			for _, topic := range r.(*kmsg.FetchRequest).Topics {
				for _, p := range topic.Partitions {
					lowest.Store(min(lowest.Load(), p.FetchOffset))
				}
			}
			return nil, nil, false
		})
		_, kept := open(t, k)
		if diff := cmp.Diff(new(behind(batches)), kept); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if lowest.Load() < batches-100 {
			t.Errorf("the topic was read from offset %d on, of more than %d", lowest.Load(), batches)
		}
	})
}

// TestOpenFindsProgressBehindFailedTerms: each of them leaves marks and nothing else.
func TestOpenFindsProgressBehindFailedTerms(t *testing.T) {
	t.Parallel()
	eachDelivery(t, func(t *testing.T, exactlyOnce bool) {
		_, k := newCluster(t)
		k.ExactlyOnce = exactlyOnce
		p, _ := open(t, k)
		if err := p.Publish(t.Context(), nil, behind(1)); err != nil {
			t.Fatal(err)
		}
		p.Close()
		for n := range 200 {
			p, kept := open(t, k)
			p.Close()
			if diff := cmp.Diff(new(behind(1)), kept); diff != "" {
				t.Fatalf("behind %d terms (-want +got):\n%s", n, diff)
			}
		}
	})
}

// TestOpenWhenTheLogBeginsLater: retention, or an operator, has deleted records.
func TestOpenWhenTheLogBeginsLater(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		deleted int64 // up to this offset
		want    *relay.Progress
	}{
		"before progress": {100, new(behind(150))},
		"with progress":   {1_000, nil}, // the end
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kafka.Producer{Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t)}
			admin, topic := kadm.NewClient(client(t, k.Brokers)), k.TopicPrefix+"relay-progress.main"
			deletable := map[string]*string{"cleanup.policy": kadm.StringPtr("compact,delete")}
			if _, err := admin.CreateTopic(t.Context(), 1, 1, deletable, topic); err != nil {
				t.Fatal(err)
			}
			p, _ := open(t, k)
			for n := int64(1); n <= 150; n++ {
				if err := p.Publish(t.Context(), nil, behind(n)); err != nil {
					t.Fatal(err)
				}
			}
			p.Close()
			ends, err := admin.ListEndOffsets(t.Context(), topic)
			if err != nil {
				t.Fatal(err)
			}
			end, _ := ends.Lookup(topic, 0)
			end.Offset = min(end.Offset, c.deleted)
			var offsets kadm.Offsets
			offsets.AddOffset(topic, 0, end.Offset, -1)
			deleted, err := admin.DeleteRecords(t.Context(), offsets)
			if err = errors.Join(err, deleted.Error()); err != nil {
				t.Fatal(err)
			}

			_, kept := open(t, k)
			if diff := cmp.Diff(c.want, kept); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestRelaysDoNotHoldUpEachOther: a transaction that one leaves open ends what the other's readers see.
func TestRelaysDoNotHoldUpEachOther(t *testing.T) {
	t.Parallel()
	k := kafka.Producer{Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t), ExactlyOnce: true}
	p, _, err := k.Open(t.Context(), "other", "")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	hung, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...), kgo.TransactionalID(k.TopicPrefix+"relay.other."), kgo.TransactionTimeout(5*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hung.Close)
	if err := hung.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	record := &kgo.Record{Topic: k.TopicPrefix + "relay-progress.other", Key: []byte("other."), Value: []byte("{}")}
	if err := hung.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}

	if _, kept := open(t, k); kept != nil { // long before the broker aborts the transaction
		t.Errorf("found %+v", kept)
	}
}

// TestOpenIsFastAfterManyTransactions measures, on Apache Kafka, with OPEN_TRANSACTIONS=200000.
func TestOpenIsFastAfterManyTransactions(t *testing.T) {
	many, err := strconv.Atoi(os.Getenv("OPEN_TRANSACTIONS"))
	if err != nil {
		t.Skip("OPEN_TRANSACTIONS is not set")
	}
	k := kafka.Producer{Brokers: testenv.Brokers(t), TopicPrefix: testenv.TopicPrefix(t), ExactlyOnce: true}
	p, _ := open(t, k)
	p.Close()

	took := map[int]time.Duration{}
	written := 0
	for _, n := range []int{100, many} {
		transactions(t, k, n-written)
		written = n
		p, _ := open(t, k)
		if err := p.Publish(t.Context(), nil, behind(int64(n))); err != nil {
			t.Fatal(err)
		}
		p.Close()

		var all []time.Duration
		for range 9 {
			begun := time.Now()
			p, kept := open(t, k)
			all = append(all, time.Since(begun))
			p.Close()
			if diff := cmp.Diff(new(behind(int64(n))), kept); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		}
		slices.Sort(all)
		took[n] = all[len(all)/2]
		t.Logf("after %d transactions opening takes %s (%s to %s)", n, took[n], all[0], all[len(all)-1])
	}
	if took[many] > 2*took[100]+50*time.Millisecond {
		t.Errorf("opening takes %s, and %s after 100 transactions", took[many], took[100])
	}
}

// transactions writes n transactions with progress, from several producers: what a relay writes in n batches.
func transactions(t testing.TB, k kafka.Producer, n int) {
	t.Helper()
	const producers = 100 // each waits for the markers of its last transaction before it begins the next
	var left atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for i := range producers {
		c, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...), kgo.TransactionalID(fmt.Sprintf("%sfiller.%d", k.TopicPrefix, i)),
			kgo.ProducerLinger(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		all.Go(func() {
			for left.Add(-1) >= 0 {
				record := &kgo.Record{Topic: k.TopicPrefix + "relay-progress.main", Key: []byte("main."), Value: []byte(`{"epoch": "of a test"}`)}
				err := c.BeginTransaction()
				if err == nil {
					err = c.ProduceSync(t.Context(), record).FirstErr()
				}
				if err == nil {
					err = c.EndTransaction(t.Context(), kgo.TryCommit)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

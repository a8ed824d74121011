package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

const exactlyOnce = "exactly-once"

// forEachDelivery runs a test of relays with each RELAY_DELIVERY.
func forEachDelivery(t *testing.T, lease string, test func(t *testing.T, r *relays)) {
	t.Parallel()
	for _, delivery := range []string{"at-least-once", exactlyOnce} {
		t.Run(delivery, func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			r := newRelaysVia(t, db, db.URLAs, db.Pool(t, "api_write"), "RELAY_LEASE="+lease, "RELAY_DELIVERY="+delivery)
			test(t, r)
		})
	}
}

func TestLeadersThatAreKilledAtAnyMomentLoseNothing(t *testing.T) {
	const kills = 8
	forEachDelivery(t, "1s", func(t *testing.T, r *relays) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		leader := r.start()
		r.leads(leader)
		var took []time.Duration
		for range kills {
			standby := r.start()
			pause(t, time.Duration(rng.Int64N(int64(300*time.Millisecond))))
			began := time.Now()
			leader.Kill()
			leader = standby
			took = append(took, r.publishes(leader, began).leads)
		}
		t.Logf("it led after %s, median %s, with a lease of 1 s", rounded(took), median(took))
		r.isDelivered(kills, leader)
	})
}

func TestARelayThatIsToldToEndHandsOverAtOnce(t *testing.T) {
	const times = 7
	forEachDelivery(t, "1m", func(t *testing.T, r *relays) {
		leader := r.start()
		r.leads(leader)
		var leads, publishes []time.Duration
		for range times {
			standby := r.start()
			began := time.Now()
			signal(t, leader, syscall.SIGTERM)
			took := r.publishes(standby, began)
			leader.Stop()
			leader = standby
			leads, publishes = append(leads, took.leads), append(publishes, took.publishes)
		}
		t.Logf("from SIGTERM to the next leader %s, median %s; to its first acknowledged batch %s, median %s",
			rounded(leads), median(leads), rounded(publishes), median(publishes))
		if m := median(leads); m > 5*time.Second { // a hundred milliseconds are promised; a machine may be busy
			t.Errorf("a standby leads after %s, with a lease of a minute", m)
		}
		r.isDelivered(0, leader)
	})
}

func TestLeaderStoppedBeyondItsLeaseIsFenced(t *testing.T) {
	forEachDelivery(t, "5s", func(t *testing.T, r *relays) {
		first := r.start()
		r.leads(first)
		second := r.start()
		signal(t, first, syscall.SIGSTOP)
		r.leads(second)
		signal(t, first, syscall.SIGCONT)
		r.standsBy(first)
		r.leads(second) // it did not disturb the new leader
		second.Stop()
		r.leads(first)
		r.isDelivered(1, first)
	})
}

// pause lets d pass: a moment that nothing marks is what is wanted.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

type handover struct{ leads, publishes time.Duration }

// publishes waits until a relay leads and a batch of its was acknowledged, and says when.
func (r *relays) publishes(p *process.Process, since time.Time) (took handover) {
	r.t.Helper()
	testenv.Eventually(r.t, 20*time.Second, func() error {
		metrics := get(r.t, "http://"+p.Admin+"/metrics")
		if took.leads == 0 && strings.Contains(metrics, "\nrelay_leader 1\n") {
			took.leads = time.Since(since)
		}
		if took.leads == 0 || strings.Contains(metrics, "\nrelay_events_published_total 0\n") {
			return errors.New("it does not lead, or has published nothing")
		}
		took.publishes = time.Since(since)
		return nil
	})
	return took
}

// isDelivered ends the writers, waits until the leader has sent everything, ends it, and counts in the whole topic: nothing is lost,
// what is seen for the first time is in order, and there are as many repeats as crashes explain, with exactly-once none.
func (r *relays) isDelivered(crashes int, leader *process.Process) {
	r.t.Helper()
	r.endWriting()
	// An event that commits late has a smaller id than the cursor's: the id alone says too little.
	const unsent = `SELECT count(*) FROM outbox_events o, outbox_cursors c WHERE o.id > c.last_id OR NOT pg_visible_in_snapshot(o.xid, c.seen)`
	testenv.Eventually(r.t, 20*time.Second, func() error {
		var n int64
		err := r.chain.owner.QueryRow(r.t.Context(), unsent).Scan(&n)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d events were not sent", n)
		}
		return err
	})
	leader.Stop()
	records := r.committed("payments")
	repeated, most := r.inOrder(records), 0
	if !slices.Contains(r.env, "RELAY_DELIVERY="+exactlyOnce) {
		most = crashes * 2 * batchOfRelays
	}
	if repeated > most {
		r.t.Errorf("%d records are repeats, at most %d can be", repeated, most)
	}
}

// batchOfRelays is RELAY_BATCH as it is by default.
const batchOfRelays = 1000

// committed reads all of a topic that readers with read_committed ever see. No transaction is left open on it.
func (r *relays) committed(topic string) (records []*kgo.Record) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	topic = r.chain.prefix + topic
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(r.t)...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords()) // a partition may end in one, and would never seem read
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		r.t.Fatal(err)
	}
	left := map[int32]int64{}
	testenv.Eventually(r.t, 30*time.Second, func() (open error) { // markers are written behind a commit's answer
		stable, err := admin.ListCommittedOffsets(ctx, topic)
		if err != nil {
			return err
		}
		ends.Each(func(end kadm.ListedOffset) {
			if s, _ := stable.Lookup(topic, end.Partition); s.Offset < end.Offset {
				open = fmt.Errorf("partition %d: a transaction is open at %d, the end is %d", end.Partition, s.Offset, end.Offset)
			} else if end.Offset > 0 {
				left[end.Partition] = end.Offset
			}
		})
		return open
	})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			r.t.Fatalf("partitions that were not read to their ends: %v", left)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if !record.Attrs.IsControl() {
				records = append(records, record)
			}
			if record.Offset+1 >= left[record.Partition] {
				delete(left, record.Partition)
			}
		})
	}
	return records
}

func rounded(ds []time.Duration) (rounded []time.Duration) {
	for _, d := range ds {
		rounded = append(rounded, d.Round(time.Millisecond))
	}
	return rounded
}

func median(ds []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(ds))
	return sorted[len(sorted)/2].Round(time.Millisecond)
}

package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// relay is the relay of a cluster, at Kafka.
type relay struct {
	*cluster
	env []string // but the database
}

// newRelay has topics of its own.
func newRelay(c *cluster, delivery string) *relay {
	return &relay{c, []string{
		"KAFKA_BROKERS=" + strings.Join(testenv.Brokers(c.t), ","),
		"TOPIC_PREFIX=" + testenv.TopicPrefix(c.t), "RELAY_LEASE=5s", "RELAY_DELIVERY=" + delivery,
	}}
}

func (r *relay) prefix() string { return strings.TrimPrefix(r.env[1], "TOPIC_PREFIX=") }

func (r *relay) at(c *cluster) *relay { return &relay{c, r.env} }

func (r *relay) environment() []string {
	return append([]string{"DATABASE_URL=" + r.url("relay")}, r.env...)
}

// drain runs the relay until everything is sent and Kafka has the record of it.
func (r *relay) drain() {
	r.t.Helper()
	dir := r.t.TempDir()
	if err := os.Symlink(current.path(r.t, "relay"), filepath.Join(dir, "relay")); err != nil {
		r.t.Fatal(err)
	}
	p, err := process.Start(r.t.Context(), dir, "relay", r.environment()...)
	if err != nil {
		r.t.Fatal(err)
	}
	defer p.Stop()

	testenv.Eventually(r.t, soon+time.Minute, func() error {
		select {
		case <-p.Ended:
			r.t.Fatal(p.Err())
		default:
		}
		if n := query[int](r.cluster, `SELECT count(*) FROM outbox_events o WHERE NOT EXISTS (
			SELECT FROM outbox_cursors c WHERE o.id <= c.last_id AND pg_visible_in_snapshot(o.xid, c.seen))`); n > 0 {
			return fmt.Errorf("%d events are not sent", n)
		}
		at, kept := query[int64](r.cluster, `SELECT batches FROM outbox_cursors`), r.kept()
		if kept < at {
			return fmt.Errorf("the cursor is at %d, Kafka's record at %d", at, kept)
		}
		return nil
	})
}

// records reads a topic to its end.
func (r *relay) records(topic string) (records []*kgo.Record) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), soon)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(r.t)...), kgo.ConsumeTopics(r.prefix()+topic),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	left := ends(ctx, r.t, client, r.prefix()+topic)
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.t.Fatal(err)
		}
		for _, record := range fetches.Records() {
			if !record.Attrs.IsControl() {
				records = append(records, record)
			}
			if record.Offset+1 >= left[record.Partition] {
				delete(left, record.Partition)
			}
		}
	}
	return records
}

// kept returns how many batches Kafka's record has.
func (r *relay) kept() (batches int64) {
	for _, record := range r.records("relay-progress.main") {
		var kept struct{ Batches int64 }
		if !strings.HasSuffix(string(record.Key), " opened") && json.Unmarshal(record.Value, &kept) == nil {
			batches = max(batches, kept.Batches)
		}
	}
	return batches
}

// complete compares the topics with the outbox: each event once.
func (r *relay) complete() {
	r.t.Helper()
	if diff := cmp.Diff(query[[]string](r.cluster, sortedEvents), r.published()); diff != "" {
		r.t.Errorf("on the topics (-outbox +topics):\n%s", diff)
	}
}

const sortedEvents = `
SELECT array_agg(event_id::text ORDER BY event_id::text COLLATE "C") FROM outbox_events`

// published returns the ids of the events on the topics, sorted.
func (r *relay) published() (ids []string) {
	r.t.Helper()
	for _, topic := range []string{"payments", "accounts"} {
		for _, record := range r.records(topic) {
			for _, h := range record.Headers {
				if h.Key == "ce_id" {
					ids = append(ids, string(h.Value))
				}
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// refuses starts the relay, which must end with one line that has the words.
func (r *relay) refuses(words string) {
	r.t.Helper()
	got := current.run(r.t, "relay", r.environment(), nil, nil)
	if line := last(got.stderr); got.code != 1 || !strings.Contains(line, words) {
		r.t.Errorf("the relay: exit code %d, %q, want %q", got.code, line, words)
	}
}

// adopt runs relay adopt. It must succeed if no words are wanted, else refuse in one line with them.
func (r *relay) adopt(words string, args ...string) {
	r.t.Helper()
	got := current.run(r.t, "relay", r.environment(), append([]string{"adopt"}, args...), nil)
	switch line := last(got.stderr); {
	case words == "" && (got.code != 0 || !strings.HasPrefix(got.stdout, "adopted: ")):
		r.t.Fatalf("adopt: %+v", got)
	case words != "" && (got.code != 1 || !strings.Contains(line, words)):
		r.t.Errorf("adopt: %+v, want %q", got, words)
	}
}

func last(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// ends returns the ends of a topic's partitions that have records.
func ends(ctx context.Context, t *testing.T, client *kgo.Client, topic string) map[int32]int64 {
	t.Helper()
	listed, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		if o.Err == nil && o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	return left
}

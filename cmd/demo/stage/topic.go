package stage

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/cmd/demo/local"
)

// mostRecords are remembered: minutes of traffic, so that those of the payment that is shown are
// among them.
const mostRecords = 8192

// topic follows the topic of payments, once the page is watched.
type topic struct {
	client *kgo.Client
	done   sync.WaitGroup

	mu      sync.Mutex
	records []*kgo.Record
}

// follow starts reading at the end. Records are fetched twice a second, not one by one.
func (t *topic) follow(ctx context.Context, brokers []string) {
	if t.client != nil {
		return
	}

	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...), kgo.ClientID("oncepay-page"),
		kgo.ConsumeTopics(local.TopicPrefix+"payments"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMinBytes(1<<20), kgo.FetchMaxWait(time.Second/2),
	)
	if err != nil {
		return // tried again with the next state
	}
	t.client = client
	t.done.Go(func() { t.run(ctx) })
}

func (t *topic) run(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := t.client.PollFetches(ctx)
		if fetches.IsClientClosed() {
			return
		}

		t.mu.Lock()
		t.records = append(t.records, fetches.Records()...)
		t.records = t.records[max(0, len(t.records)-mostRecords):]
		t.mu.Unlock()
	}
}

// about returns what was read about an aggregate.
func (t *topic) about(id string) (rows []row) {
	t.mu.Lock()
	defer t.mu.Unlock()

	for _, r := range t.records {
		if string(r.Key) != id {
			continue
		}
		values := [][2]string{
			{"partition", strconv.Itoa(int(r.Partition))}, {"offset", strconv.FormatInt(r.Offset, 10)},
		}
		for _, h := range r.Headers {
			switch h.Key {
			case "ce_type", "ce_id", "ce_sequence":
				values = append(values, [2]string{h.Key, string(h.Value)})
			}
		}
		rows = append(rows, row{"kafka", r.Topic, values[0][1] + "/" + values[1][1], values})
	}
	return rows
}

func (t *topic) close() {
	if t.client != nil {
		t.client.Close()
		t.done.Wait()
	}
}

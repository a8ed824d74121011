package inbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// One by one a thousand events may take longer than a rebalance waits for its members.
func TestPassEndsWithinItsLimit(t *testing.T) {
	t.Parallel()
	const events, slow = 30, 500 * time.Millisecond
	d := newDesk(t, testenv.Brokers(t), 1)
	records := []*kgo.Record{d.numbered(0, "bad", 1, poisoned...)}
	for n := range events {
		records = append(records, d.numbered(0, "good", n+1))
	}
	d.produce(t, records...)

	c := d.consumer(t)
	var mu sync.Mutex
	batches := map[int]int{}
	c.Handle = func(ctx context.Context, tx pgx.Tx, es []inbox.Event) error {
		mu.Lock()
		batches[len(es)]++
		mu.Unlock()
		if len(es) == 1 {
			<-time.After(slow) // a handler that takes its time
		}
		return d.handle(ctx, tx, es)
	}
	d.start(t, c)
	testenv.Eventually(t, waitLimit, func() error { return want(nil, 1, len(d.letters(t, 1))) })
	committed := func() (offset int64) {
		offsets, err := kadm.NewClient(d.client).FetchOffsets(t.Context(), d.topic)
		if err != nil {
			t.Error(err)
		}
		at, _ := offsets.Lookup(d.topic, 0)
		return at.At
	}
	var at int64
	testenv.Eventually(t, waitLimit, func() error {
		if at = committed(); at <= 1 {
			return fmt.Errorf("offset %d", at)
		}
		return nil
	})
	if at > events {
		t.Errorf("the first offset was committed when all was done, in one pass")
	}

	var sequence []int64
	for n := range events {
		sequence = append(sequence, int64(n+1))
	}
	d.wantApplied(t, map[string][]int64{"good": sequence})
	mu.Lock()
	defer mu.Unlock()
	if n := batches[1]; n < events {
		t.Errorf("%d were done alone, want all: %v", n, batches)
	}
}

package webhooks_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/webhooks"
)

func TestCallsKeepTheEventsTrace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := receive(t, func(int, received) int { return 200 })
	b.endpoint(t, r.URL)

	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	traced, untraced := b.event(uuid.New(), 1), b.event(uuid.New(), 1)
	traced.Traceparent = parent
	b.write(t, traced, untraced)

	var mu sync.Mutex
	got := map[string]string{}
	b.run(t, &webhooks.Sender{OnCall: func(ctx context.Context, c webhooks.Call) (context.Context, func(string, int)) {
		return ctx, func(outcome string, status int) {
			mu.Lock()
			defer mu.Unlock()
			got[c.EventID] = c.Traceparent
			if outcome != "delivered" || status != 200 || c.URL != r.URL || c.Tries != 0 {
				t.Errorf("%s, %d of %+v", outcome, status, c)
			}
		}
	}})
	b.sent(t)

	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(map[string]string{traced.ID.String(): parent, untraced.ID.String(): ""}, got); diff != "" {
		t.Error(diff)
	}
	if n := b.count(t, `SELECT count(*) FROM webhook_deliveries WHERE traceparent IS NULL`); n != 1 {
		t.Errorf("%d deliveries without a traceparent", n)
	}
}

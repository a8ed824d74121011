package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAPaymentIsAnsweredPublishedAndInTheStatements(t *testing.T) {
	t.Parallel()
	c := newChain(t)

	first, err := c.pay(t.Context(), "order-1", 2500)
	if err != nil || first.status != http.StatusCreated || first.header.Get("Idempotent-Replayed") != "false" {
		t.Fatalf("first: %v %+v", err, first)
	}
	repeat, err := c.pay(t.Context(), "order-1", 2500)
	if err != nil || repeat.status != first.status || repeat.body != first.body || repeat.header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("repeat: %v %+v", err, repeat)
	}
	other, err := c.pay(t.Context(), "order-1", 9900)
	if err != nil || other.status != http.StatusUnprocessableEntity {
		t.Fatalf("same key, other amount: %v %+v", err, other)
	}

	var payment struct{ ID, Status string }
	if err := json.Unmarshal([]byte(first.body), &payment); err != nil {
		t.Fatal(err)
	}
	// Two payments came from seeding, one from here: one event each.
	for _, r := range c.topic("payments", 3) {
		if string(r.Key) != payment.ID {
			continue
		}
		if string(r.Value) != first.body {
			t.Errorf("the event carries\n%s\nthe answer was\n%s", r.Value, first.body)
		}
		if got := header(r, "ce_type"); got != "payment.completed" {
			t.Errorf("ce_type = %q", got)
		}
		if got := header(r, "traceparent"); !strings.Contains(got, "4bf92f3577b34da6a3ce929d0e0e4736") {
			t.Errorf("traceparent = %q: not the request's trace", got)
		}
	}
	c.statementsMatchTheLedger()

	entries, err := c.send(t.Context(), "GET", "/api/v1/accounts/"+c.Accounts[0].ID.String()+"/entries", "", "")
	if err != nil || entries.status != http.StatusOK || !strings.Contains(entries.body, `"amount_minor":-2500`) {
		t.Errorf("entries: %v %+v", err, entries)
	}
	metrics := get(t, "http://"+c.api.Admin+"/metrics")
	for _, line := range []string{`idempotency_requests_total{outcome="new"} 1`, `idempotency_requests_total{outcome="replay"} 1`, `idempotency_requests_total{outcome="mismatch"} 1`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// TestNothingIsLostOrDoubledWhenEveryProgramIsKilled is the shortest form of what the service is for.
func TestNothingIsLostOrDoubledWhenEveryProgramIsKilled(t *testing.T) {
	t.Parallel()
	c := newChain(t)
	const clients, each = 8, 25
	var wg sync.WaitGroup
	var mu sync.RWMutex // held for writing while the API is being replaced
	var done sync.Map   // key → body of its answer
	progress := make(chan struct{}, clients*each)
	for n := range clients {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprintf("k-%d-%d", n, i)
				body, err := c.persist(t.Context(), &mu, key)
				if err != nil {
					t.Errorf("%s: %v", key, err)
					return
				}
				done.Store(key, body)
				progress <- struct{}{}
			}
		})
	}
	await := func(n int) {
		for range n {
			select {
			case <-progress:
			case <-time.After(time.Minute):
				t.Fatal("the clients get no answers")
			}
		}
	}
	await(40)
	c.relay.Kill()
	c.startRelay()
	await(40)
	c.consumer.Kill()
	c.startConsumer()
	await(40)
	c.api.Kill() // in the middle of up to eight requests
	mu.Lock()
	c.startAPI()
	mu.Unlock()
	wg.Wait()
	if t.Failed() {
		return
	}

	done.Range(func(key, body any) bool { // what was promised still stands
		again, err := c.pay(t.Context(), key.(string), 100)
		if err != nil || again.body != body.(string) || again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %v %+v, first %s", key, err, again, body)
		}
		return true
	})
	c.number(clients*each, `SELECT count(*) FROM payments WHERE idempotency_key LIKE 'k-%'`)
	c.number(clients*each, `SELECT count(DISTINCT idempotency_key) FROM payments WHERE idempotency_key LIKE 'k-%'`)
	var committed []string
	if err := c.owner.QueryRow(t.Context(), `SELECT array_agg(event_id::text) FROM outbox_events WHERE aggregate_type = 'payments'`).Scan(&committed); err != nil {
		t.Fatal(err)
	}
	published := map[string]bool{}
	for _, r := range c.topic("payments", len(committed)) {
		published[header(r, "ce_id")] = true
	}
	for _, id := range committed {
		if !published[id] {
			t.Errorf("event %s is committed and not on the topic", id)
		}
	}
	if len(published) != len(committed) {
		t.Errorf("%d events on the topic, %d were committed", len(published), len(committed))
	}
	c.statementsMatchTheLedger()
}

// persist pays as a client should: the same key until there is an answer.
func (c *chain) persist(ctx context.Context, mu *sync.RWMutex, key string) (body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		mu.RLock()
		a, err := c.pay(ctx, key, 100)
		mu.RUnlock()
		switch {
		case err == nil && a.status == http.StatusCreated:
			return a.body, nil
		case err == nil && a.status != http.StatusConflict && a.status != http.StatusServiceUnavailable:
			return "", fmt.Errorf("%w: %d %s", errRefused, a.status, a.body)
		}
		select { // a killed API refuses connections until the next one is there
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return "", ctx.Err()
}

// statementsMatchTheLedger waits until every event has taken effect, and compares the consumer's sums with the entries.
func (c *chain) statementsMatchTheLedger() {
	c.t.Helper()
	c.number(0, `SELECT (SELECT count(*) FROM outbox_events) - (SELECT count(*) FROM inbox_events)`)
	c.number(0, `
		WITH ledger AS (
			SELECT account_id, (created_at AT TIME ZONE 'utc')::date AS day, count(*) AS n,
			       coalesce(-sum(amount_minor) FILTER (WHERE amount_minor < 0), 0) AS debits, coalesce(sum(amount_minor) FILTER (WHERE amount_minor > 0), 0) AS credits
			FROM ledger_entries GROUP BY 1, 2)
		SELECT count(*) FROM ledger l FULL JOIN statements s USING (account_id, day)
		WHERE (l.n, l.debits, l.credits) IS DISTINCT FROM (s.payment_count, s.debits_minor, s.credits_minor)`)
	c.number(0, `SELECT count(*) FROM (SELECT FROM ledger_entries GROUP BY payment_id, currency HAVING sum(amount_minor) <> 0) unbalanced`)
	c.number(0, `SELECT count(*) FROM accounts a WHERE balance_minor <> (SELECT coalesce(sum(amount_minor), 0) FROM ledger_entries e WHERE e.account_id = a.id)`)
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/webhooks"
)

// TestEventsBecomeWebhooks: from the topic to a receiver that verifies, through two workers. What Kafka delivers twice is sent once.
func TestEventsBecomeWebhooks(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner, tenant := db.Pool(t, ""), uuid.New()
	brokers, prefix := testenv.Brokers(t), testenv.TopicPrefix(t)

	var mu sync.Mutex
	got := map[string]string{} // webhook-id to body
	var verifier *standardwebhooks.Webhook
	calls := 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = verifier.Verify(body, r.Header)
		}
		if err != nil {
			t.Error(err)
		}
		got[r.Header.Get("webhook-id")] = string(body)
		calls++
	}))
	t.Cleanup(receiver.Close)
	var endpoint webhooks.Secret
	err := pgx.BeginFunc(t.Context(), owner, func(tx pgx.Tx) (err error) {
		endpoint, err = webhooks.Create(t.Context(), tx, tenant, receiver.URL, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if verifier, err = standardwebhooks.NewWebhook(endpoint.Secret); err != nil {
		t.Fatal(err)
	}

	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(50*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 3, 1, nil, prefix+"payments", prefix+"webhook-endpoints"); err != nil {
		t.Fatal(err)
	}
	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	payment := uuid.NewString()
	record := func(id uuid.UUID, of, sequence string) *kgo.Record {
		header := func(name, value string) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: []byte(value)} }
		r := &kgo.Record{Topic: prefix + "payments", Key: []byte(payment), Value: []byte(`{"id":"` + payment + `"}`), Headers: []kgo.RecordHeader{
			header("ce_specversion", "1.0"), header("ce_id", id.String()), header("ce_type", "payment.completed"), header("ce_source", "/oncepay"),
			header("ce_subject", payment), header("ce_time", time.Now().UTC().Format(time.RFC3339Nano)), header("ce_sequence", sequence),
		}}
		if of != "" {
			r.Headers = append(r.Headers, header("ce_tenantid", of))
		}
		return r
	}
	err = client.ProduceSync(context.Background(),
		record(ids[0], tenant.String(), "1"), record(ids[1], "", "2"), record(ids[2], tenant.String(), "3"), record(ids[0], tenant.String(), "1"),
		&kgo.Record{Topic: prefix + "webhook-endpoints", Value: []byte("no event")}).FirstErr()
	if err != nil {
		t.Fatal(err)
	}

	more := []string{
		"WORKER_PARTS", "expiry,webhooks", "KAFKA_BROKERS", strings.Join(brokers, ","), "TOPIC_PREFIX", prefix,
		"WEBHOOKS_GROUP", prefix + "webhooks", "WEBHOOKS_ALLOW", "127.0.0.0/8",
	}
	i := start(t, db.URLAs("worker"), more...)
	start(t, db.URLAs("worker"), more...)
	testenv.Eventually(t, soon+time.Minute, func() error { // a rebalance may take as long
		mu.Lock()
		defer mu.Unlock()
		if len(got) < 2 {
			return errors.New("not all have come")
		}
		return nil
	})
	mu.Lock()
	if calls != 2 || !strings.Contains(got[ids[0].String()], `"sequence":"1"`) || !strings.Contains(got[ids[2].String()], `"sequence":"3"`) {
		t.Errorf("%d calls: %v", calls, got)
	}
	mu.Unlock()
	testenv.Eventually(t, soon, func() error {
		return i.shows("webhooks_oldest_due_seconds 0", "webhooks_disabled_endpoints 0", `webhooks_deliveries_total{state="failed"} 0`)
	})

	// What is no event waits for an operator. Its partition may be on the way to the second worker.
	testenv.Eventually(t, soon+time.Minute, func() error {
		var letters int
		err := owner.QueryRow(t.Context(), `SELECT count(*) FROM inbox_dead_letters WHERE consumer = 'webhooks'`).Scan(&letters)
		if err == nil && letters != 1 {
			err = fmt.Errorf("%d dead letters", letters)
		}
		return err
	})
	testenv.Eventually(t, soon, func() error { return i.shows("inbox_dead_letters [01]") })
}

// TestUpkeepGoesOn: an endpoint that was enabled and fails again has something to resume at any time. The rest of the upkeep must not
// wait for it.
func TestUpkeepGoesOn(t *testing.T) {
	t.Parallel()
	h, steps := &hooks{}, 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := h.repeat(ctx, func(context.Context, *pgxpool.Pool) (int, error) {
		if steps++; steps == 100 {
			cancel()
		}
		return map[bool]int{true: webhooks.Batch, false: 1}[steps == 1], nil
	})
	if steps != 2 || err != nil {
		t.Errorf("%d steps, %v", steps, err)
	}
}

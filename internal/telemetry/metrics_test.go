package telemetry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// scrape returns what Prometheus would read.
func scrape(reg *prometheus.Registry) string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func shows(t *testing.T, reg *prometheus.Registry, lines ...string) {
	t.Helper()
	text := "\n" + scrape(reg)
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s in%s", line, text)
		}
	}
}

type stat struct {
	acquired, idle, total, limit int32
	waits                        int64
	waited                       time.Duration
}

func (s *stat) AcquiredConns() int32 { return s.acquired }
func (s *stat) IdleConns() int32     { return s.idle }
func (s *stat) TotalConns() int32    { return s.total }
func (s *stat) MaxConns() int32      { return s.limit }

func (s *stat) EmptyAcquireCount() int64            { return s.waits }
func (s *stat) EmptyAcquireWaitTime() time.Duration { return s.waited }

func TestWorkerMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewWorker(reg)
	shows(t, reg, "expiry_payments_total 0", "expiry_errors_total 0")

	m.Expired(100, 30*time.Millisecond)
	m.Error()
	m.Overdue(1500 * time.Millisecond)
	m.Books("currencies", 0)
	m.Books("accounts", 2)
	shows(t, reg, `books_wrong{check="accounts"} 2`, `books_wrong{check="currencies"} 0`, "expiry_payments_total 100", "expiry_batch_seconds_count 1", "expiry_errors_total 1", "expiry_oldest_overdue_seconds 1.5")

	m.NoOverdue()
	m.NoBooks("accounts")
	if text := scrape(reg); strings.Contains(text, "\nexpiry_oldest_overdue_seconds ") || strings.Contains(text, `{check="accounts"}`) {
		t.Errorf("it shows what was not measured:\n%s", text)
	}
}

func TestAPIMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewAPI(reg)
	shows(t, reg,
		`idempotency_requests_total{outcome="mismatch"} 0`, `idempotency_requests_total{outcome="busy"} 0`,
		`psp_webhooks_total{outcome="ignored"} 0`, `commit_seconds_count{outcome="failed"} 0`)

	m.Outcome("replay")
	m.Claimed(80 * time.Microsecond)
	m.Request(t.Context(), "/api/v1/payments", "POST", 201, 3*time.Millisecond)
	m.Request(t.Context(), "", "BREW", 405, time.Millisecond)
	telemetry.WatchPool(reg, "write", func() *stat {
		return &stat{acquired: 3, idle: 1, total: 4, limit: 16, waits: 5, waited: 1500 * time.Millisecond}
	})
	telemetry.WatchPool(reg, "read", func() *stat { return &stat{limit: 8} })
	shows(t, reg,
		`idempotency_requests_total{outcome="new"} 0`,
		`idempotency_requests_total{outcome="replay"} 1`,
		`idempotency_claim_seconds_bucket{le="5e-05"} 0`,
		`idempotency_claim_seconds_bucket{le="0.0001"} 1`,
		`http_requests_total{method="POST",route="/api/v1/payments",status="201"} 1`,
		`http_requests_total{method="other",route="unmatched",status="405"} 1`,
		`http_request_seconds_count{route="/api/v1/payments"} 1`,
		`db_pool_acquired_connections{pool="write"} 3`,
		`db_pool_idle_connections{pool="write"} 1`,
		`db_pool_total_connections{pool="write"} 4`,
		`db_pool_max_connections{pool="read"} 8`,
		`db_pool_waits_total{pool="write"} 5`,
		`db_pool_wait_seconds_total{pool="write"} 1.5`,
	)
}

func TestPSPMetricsStartAtZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewPSP(reg)
	shows(t, reg,
		`psp_calls_total{call="refund",outcome="unauthorized"} 0`, `psp_call_seconds_count{call="find"} 0`,
		`psp_results_total{kind="charge",recorded="unbookable"} 0`, `psp_conflicts_total{kind="refund"} 0`,
	)

	m.Called(t.Context(), "refund", "unauthorized", time.Millisecond)
	m.Recorded("charge", "unbookable")
	shows(t, reg,
		`psp_calls_total{call="refund",outcome="unauthorized"} 1`, `psp_results_total{kind="charge",recorded="unbookable"} 1`)
}

func TestLockMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewLocks(reg)
	m.Waiting(2, 1500*time.Millisecond)
	shows(t, reg, "db_lock_waiting_sessions 2", "db_lock_oldest_wait_seconds 1.5")

	m.NotMeasured()
	if text := scrape(reg); strings.Contains(text, "\ndb_lock_") {
		t.Errorf("it shows what was not measured:\n%s", text)
	}
}

func TestRelayMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewRelay(reg)
	m.Leader(true)
	m.Backlog(12, 1500*time.Millisecond, 2, 1)
	m.OldestWriter(4 * time.Second)
	m.Published(100, 20*time.Millisecond)
	m.Acknowledged(t.Context(), 30*time.Millisecond)
	m.Acknowledged(t.Context(), 90*time.Second)
	m.Error("broker")
	m.DaysAhead("outbox_events", 7)
	m.DaysAhead("idempotency_keys", 6)
	shows(t, reg,
		`outbox_backlog_events 12`, `outbox_oldest_unsent_seconds 1.5`, `relay_leader 1`,
		`relay_events_published_total 100`, `relay_batch_events_sum 100`, `relay_publish_seconds_count 1`,
		`outbox_dead_letters 2`, `outbox_parked_aggregates 1`, `outbox_oldest_writer_seconds 4`,
		`relay_commit_to_acknowledge_seconds_bucket{le="0.025"} 0`, `relay_commit_to_acknowledge_seconds_bucket{le="0.05"} 1`,
		`relay_commit_to_acknowledge_seconds_bucket{le="300"} 2`,
		`relay_errors_total{kind="broker"} 1`, `relay_errors_total{kind="topic"} 0`,
		`partitions_days_ahead{table="outbox_events"} 7`, `partitions_days_ahead{table="idempotency_keys"} 6`,
	)
}

func TestUnmeasuredBacklogIsAbsent(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewRelay(reg)
	if text := scrape(reg); strings.Contains(text, "outbox_backlog_events") {
		t.Errorf("shown before it was measured:\n%s", text)
	}
	m.Leader(true)
	m.Backlog(12, time.Second, 0, 0)
	m.OldestWriter(time.Second)
	m.Leader(false)
	shows(t, reg, `relay_leader 0`, `outbox_backlog_events 12`) // a standby measures, too
	m.NoBacklog()
	m.NoWriter()
	if text := scrape(reg); strings.Contains(text, "\noutbox_backlog") || strings.Contains(text, "\noutbox_dead") || strings.Contains(text, "\noutbox_parked") || strings.Contains(text, "\noutbox_oldest") {
		t.Errorf("still shown when it could not be measured:\n%s", text)
	}
}

func TestTopicUnavailableUntilSentOrForgotten(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewRelay(reg)
	m.TopicUnavailable("oncepay.payments")
	m.TopicUnavailable("oncepay.accounts")
	m.ForgetTopics(time.Now())
	shows(t, reg, `relay_topic_unavailable{topic="oncepay.payments"} 1`, `relay_topic_unavailable{topic="oncepay.accounts"} 1`)
	m.Published(1, time.Millisecond)
	if text := scrape(reg); strings.Contains(text, "relay_topic_unavailable{") {
		t.Errorf("still shown when a batch was sent:\n%s", text)
	}
	m.TopicUnavailable("oncepay.payments")
	m.ForgetTopics(time.Now().Add(telemetry.TopicMemory))
	if text := scrape(reg); strings.Contains(text, "relay_topic_unavailable{") {
		t.Errorf("still shown by one that stands by:\n%s", text)
	}
}

func TestCopiesAreShownByTopicWhileTheyAreKnown(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewRelay(reg)
	m.CopiesWanted(2)
	m.Copies("oncepay.payments", 1)
	m.Copies("oncepay.accounts", 2)
	shows(t, reg, `relay_topic_copies_wanted 2`, `relay_topic_copies{topic="oncepay.payments"} 1`, `relay_topic_copies{topic="oncepay.accounts"} 2`)
	m.NoCopies("oncepay.payments")
	if text := scrape(reg); strings.Contains(text, `relay_topic_copies{topic="oncepay.payments"}`) || !strings.Contains(text, `relay_topic_copies{topic="oncepay.accounts"} 2`) {
		t.Errorf("of the topic that is unknown:\n%s", text)
	}
	m.NoCopies()
	if text := scrape(reg); strings.Contains(text, "relay_topic_copies{") {
		t.Errorf("of topics that are all unknown:\n%s", text)
	}
}

func TestPartitionsThatChangedTwiceAreShownOnce(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewRelay(reg)
	for _, now := range []int32{24, 48} {
		m.TopicUnavailable("oncepay.payments")
		m.PartitionsChanged("oncepay.payments", 12, now)
	}
	shows(t, reg, `relay_topic_partitions_changed{now="48",sent="12",topic="oncepay.payments"} 1`)
	if text := scrape(reg); strings.Contains(text, `now="24"`) {
		t.Errorf("the number before is still shown:\n%s", text)
	}
}

// At 150,000 events a second, what one takes is 0.015 % of a processor for each 1 ns.
func BenchmarkAcknowledged(b *testing.B) {
	m := telemetry.NewRelay(prometheus.NewRegistry())
	for i := 0; b.Loop(); i++ {
		m.Acknowledged(context.Background(), time.Duration(i%1000)*time.Millisecond)
	}
}

func TestConsumerMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewConsumer(reg)
	m.Event("processed", 2*time.Millisecond)
	m.Event("duplicate", time.Millisecond)
	m.Lag(40)
	m.Letters(2, 3)
	m.Gap("missing")
	m.Horizon(errors.New("too short"))
	shows(t, reg,
		`inbox_events_total{outcome="parked"} 0`, `inbox_dead_letters 2`, `inbox_parked_aggregates 3`, `inbox_retention_short 1`,
		`inbox_sequence_gaps_total{kind="missing"} 1`, `inbox_sequence_gaps_total{kind="repeated"} 0`, `inbox_sequence_gaps_total{kind="unknown"} 0`,
		`inbox_events_total{outcome="processed"} 1`, `inbox_events_total{outcome="duplicate"} 1`, `inbox_events_total{outcome="failed"} 0`,
		`inbox_event_seconds_count 2`, `consumer_lag_events 40`,
	)
}

func TestSampledTraceIsExemplar(t *testing.T) {
	t.Parallel()
	reg := telemetry.NewRegistry()
	api, relay, psp, webhooks := telemetry.NewAPI(reg), telemetry.NewRelay(reg), telemetry.NewPSP(reg), telemetry.NewWebhooks(reg)
	show := func(ctx context.Context) string {
		api.Request(ctx, "/livez", "GET", 200, time.Millisecond)
		api.Committed(ctx, time.Millisecond, false)
		relay.Acknowledged(ctx, time.Millisecond)
		psp.Called(ctx, "charge", "succeeded", time.Millisecond)
		webhooks.Called(ctx, "delivered", time.Millisecond)
		admin, err := telemetry.ListenAdmin("127.0.0.1:0", reg, nil)
		if err != nil {
			t.Fatal(err)
		}
		serving, stop := context.WithCancel(t.Context())
		var served sync.WaitGroup
		served.Go(func() { _ = admin.Run(serving) })
		defer served.Wait()
		defer stop()

		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin.Addr()+"/metrics", nil)
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return string(text)
	}

	unsampled := strings.TrimSuffix(traceparent, "1") + "0"
	if text := show(telemetry.Continue(t.Context(), unsampled)); strings.Contains(text, "trace_id") {
		t.Errorf("an exemplar of a trace that is not sampled:\n%s", text)
	}
	text := show(telemetry.Continue(t.Context(), traceparent))
	for _, name := range []string{
		"http_request_seconds", "commit_seconds", "relay_commit_to_acknowledge_seconds", "psp_call_seconds", "webhooks_call_seconds",
	} {
		line := regexp.MustCompile(name + `_bucket{[^}]*} [0-9]+ # {trace_id="0af7651916cd43dd8448eb211c80319c"} 0.001`)
		if !line.MatchString(text) {
			t.Errorf("%s has no exemplar:\n%s", name, text)
		}
	}
}

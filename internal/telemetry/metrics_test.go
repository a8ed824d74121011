package telemetry_test

import (
	"net/http/httptest"
	"strings"
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

type stat struct{ acquired, idle, total, limit int32 }

func (s *stat) AcquiredConns() int32 { return s.acquired }
func (s *stat) IdleConns() int32     { return s.idle }
func (s *stat) TotalConns() int32    { return s.total }
func (s *stat) MaxConns() int32      { return s.limit }

func TestTheAPIShowsOutcomesClaimsRequestsAndPools(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewAPI(reg)
	shows(t, reg, `idempotency_requests_total{outcome="mismatch"} 0`)

	m.Outcome("replay")
	m.Claimed(80 * time.Microsecond)
	m.Request("/api/v1/payments", "POST", 201, 3*time.Millisecond)
	m.Request("", "BREW", 405, time.Millisecond)
	telemetry.WatchPool(reg, "write", func() *stat { return &stat{acquired: 3, idle: 1, total: 4, limit: 16} })
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
	)
}

func TestTheRelayShowsItsBacklogAndPartitions(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewRelay(reg)
	m.Leader(true)
	m.Backlog(12, 1500*time.Millisecond)
	m.Published(100, 20*time.Millisecond)
	m.Error("publish")
	m.OutboxDefaultRows(0)
	m.KeysDefaultRows(2)
	m.DaysAhead("outbox_events", 7)
	m.DaysAhead("idempotency_keys", 6)
	shows(t, reg,
		`outbox_backlog_events 12`, `outbox_oldest_unsent_seconds 1.5`, `relay_leader 1`,
		`relay_events_published_total 100`, `relay_batch_events_sum 100`, `relay_publish_seconds_count 1`,
		`relay_errors_total{kind="publish"} 1`,
		`outbox_default_partition_rows 0`, `partitions_days_ahead{table="outbox_events"} 7`,
		`idempotency_default_partition_rows 2`, `partitions_days_ahead{table="idempotency_keys"} 6`,
	)
}

func TestABacklogThatNobodyMeasuresIsAbsent(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewRelay(reg)
	if text := scrape(reg); strings.Contains(text, "outbox_backlog_events") {
		t.Errorf("shown before it was measured:\n%s", text)
	}
	m.Leader(true)
	m.Backlog(12, time.Second)
	m.Leader(false)
	if text := scrape(reg); strings.Contains(text, "outbox_backlog_events") || !strings.Contains(text, "relay_leader 0") {
		t.Errorf("still shown by a standby:\n%s", text)
	}
}

func TestTheConsumerShowsOutcomesAndLag(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := telemetry.NewConsumer(reg)
	m.Event("processed", 2*time.Millisecond)
	m.Event("duplicate", time.Millisecond)
	m.Lag(40)
	shows(t, reg,
		`inbox_events_total{outcome="processed"} 1`, `inbox_events_total{outcome="duplicate"} 1`, `inbox_events_total{outcome="failed"} 0`,
		`inbox_event_seconds_count 2`, `consumer_lag_events 40`,
	)
}

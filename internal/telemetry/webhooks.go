package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Webhooks holds the metrics of the worker's part that sends events to the endpoints of tenants.
type Webhooks struct {
	calls    *prometheus.CounterVec
	seconds  prometheus.Histogram
	ended    *prometheus.CounterVec
	oldest   *prometheus.GaugeVec
	disabled *prometheus.GaugeVec
}

// NewWebhooks registers the metrics of the part webhooks of cmd/worker.
func NewWebhooks(reg prometheus.Registerer) *Webhooks {
	m := &Webhooks{
		calls: counters("webhooks_calls_total",
			"Calls of this instance by outcome: delivered (the answer was 2xx), failed (any other, or none).",
			"outcome"),
		seconds: histogram("webhooks_call_seconds", "Time of a call, failed ones included.", waiting),
		ended: counters("webhooks_deliveries_total",
			"Deliveries by the state that a recorded call left them in: delivered, pending (will be tried "+
				"again), failed (given up).", "state"),
		oldest: measured("webhooks_oldest_due_seconds",
			"For how long the oldest delivery that is due has waited to be sent; 0: none is due. Those that "+
				"wait for a retry, for an earlier one, or at a disabled endpoint do not count. Every instance "+
				"measures it: alert on it to notice workers that do not keep up."),
		disabled: measured("webhooks_disabled_endpoints",
			"Endpoints that are disabled because they are gone or have failed for three days."),
	}

	for _, outcome := range []string{"delivered", "failed"} {
		m.calls.WithLabelValues(outcome)
	}
	for _, state := range []string{"delivered", "pending", "failed"} {
		m.ended.WithLabelValues(state)
	}

	reg.MustRegister(m.calls, m.seconds, m.ended, m.oldest, m.disabled)
	return m
}

// Called counts a call: delivered or failed. ctx has its span.
func (m *Webhooks) Called(ctx context.Context, outcome string, took time.Duration) {
	m.calls.WithLabelValues(outcome).Inc()
	observe(ctx, m.seconds, took.Seconds())
}

// Recorded counts deliveries by the state that they were left in.
func (m *Webhooks) Recorded(state string, count int) {
	m.ended.WithLabelValues(state).Add(float64(count))
}

// Backlog sets for how long the oldest due delivery has waited, and how many endpoints are disabled.
func (m *Webhooks) Backlog(oldest time.Duration, disabled int64) {
	set(m.oldest, oldest.Seconds())
	set(m.disabled, float64(disabled))
}

// NoBacklog is called when that could not be measured.
func (m *Webhooks) NoBacklog() {
	m.oldest.Reset()
	m.disabled.Reset()
}

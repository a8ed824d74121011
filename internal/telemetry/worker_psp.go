package telemetry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// PSP holds the metrics of cmd/worker's psp part. Like Worker's, what is measured in the database
// is shown by every instance that has the part.
type PSP struct {
	calls     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	waited    prometheus.Histogram
	inFlight  prometheus.Gauge
	breaker   *prometheus.GaugeVec
	results   *prometheus.CounterVec
	conflicts *prometheus.CounterVec
	waiting   *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
}

// NewPSP registers the metrics of the psp part.
func NewPSP(reg prometheus.Registerer) *PSP {
	m := &PSP{
		calls: counters("psp_calls_total",
			"Calls of the PSP: charge, refund or find, by what came of them.", "call", "outcome"),
		seconds: histograms("psp_call_seconds", "Time of one call of the PSP.", waiting, "call"),
		waited: histogram("psp_first_call_wait_seconds",
			"Time from an operation's creation to its first call, by the clocks of two hosts.", waiting),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "psp_operations_in_flight",
			Help: "Operations that this instance has claimed and not recorded. At PSP_CONCURRENCY it claims no more.",
		}),
		breaker: gauges("psp_breaker",
			"1 for the breaker's state: closed, half-open or open. Unless closed, operations wait.", "state"),
		results: counters("psp_results_total",
			"Results by what recording them did. Repeated: the PSP's webhook was first, or another worker.",
			"kind", "recorded"),
		conflicts: counters("psp_conflicts_total",
			"Results that contradict our books: another amount, another end, or a key used by somebody else. "+
				"Alert on it; the log names the operation.", "kind"),
		waiting: gauges("psp_operations_waiting",
			"Operations without a result. pending: never sent; unknown: perhaps executed, sent again by itself; "+
				"operator: perhaps executed, waits for one.", "state"),
		oldest: measured("psp_oldest_operation_seconds",
			"Age of the oldest operation without a result, those that wait for an operator aside; 0: there is "+
				"none."),
	}

	reg.MustRegister(m.calls, m.seconds, m.waited, m.inFlight, m.breaker, m.results, m.conflicts,
		m.waiting, m.oldest)
	m.Breaker("closed")

	// Starting at 0 makes the first one show in a rate.
	for _, call := range []string{"charge", "refund", "find"} {
		m.seconds.WithLabelValues(call)
		for _, outcome := range pspOutcomes {
			m.calls.WithLabelValues(call, outcome)
		}
	}
	for _, kind := range []string{"charge", "refund"} {
		m.conflicts.WithLabelValues(kind)
		for _, recorded := range pspRecorded {
			m.results.WithLabelValues(kind, recorded)
		}
	}
	return m
}

// What comes of a call, and what recording its result does.
var (
	pspOutcomes = []string{
		"succeeded", "declined", "refused", "conflict", "key_reused", "timeout", "unreachable",
		"server_error", "in_progress", "rate_limited", "unauthorized", "unreadable", "breaker_open",
	}
	pspRecorded = []string{
		"applied", "repeated", "conflict", "stale", "no_operation", "unbookable", "locked",
	}
)

// Called counts a call of the PSP. ctx has its span.
func (m *PSP) Called(ctx context.Context, call, outcome string, took time.Duration) {
	m.calls.WithLabelValues(call, outcome).Inc()
	observe(ctx, m.seconds.WithLabelValues(call), took.Seconds())
}

// FirstCall observes how long an operation waited for its first call.
func (m *PSP) FirstCall(waited time.Duration) { m.waited.Observe(waited.Seconds()) }

// InFlight sets how many operations are claimed and not recorded.
func (m *PSP) InFlight(operations int) { m.inFlight.Set(float64(operations)) }

// Breaker sets the state of the breaker.
func (m *PSP) Breaker(state string) {
	for _, s := range []string{"closed", "half-open", "open"} {
		m.breaker.WithLabelValues(s).Set(0)
	}
	m.breaker.WithLabelValues(state).Set(1)
}

// Recorded counts a result.
func (m *PSP) Recorded(kind, recorded string) { m.results.WithLabelValues(kind, recorded).Inc() }

// Conflict counts a result that contradicts our books.
func (m *PSP) Conflict(kind string) { m.conflicts.WithLabelValues(kind).Inc() }

// Waiting sets how many operations have no result, and the age of the oldest.
func (m *PSP) Waiting(pending, unknown, operator int64, oldest time.Duration) {
	m.waiting.WithLabelValues("pending").Set(float64(pending))
	m.waiting.WithLabelValues("unknown").Set(float64(unknown))
	m.waiting.WithLabelValues("operator").Set(float64(operator))
	set(m.oldest, oldest.Seconds())
}

// NoWaiting is called when that could not be measured.
func (m *PSP) NoWaiting() {
	m.waiting.Reset()
	m.oldest.Reset()
}

package telemetry

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// API holds the metrics of cmd/api.
type API struct {
	outcomes *prometheus.CounterVec
	claims   prometheus.Histogram
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec

	webhooks  *prometheus.CounterVec
	batchSize prometheus.Histogram
	batchWait prometheus.Histogram
	batchTime *prometheus.HistogramVec
}

// One round trip, in steps that tell a network from a database in trouble.
var claimBuckets = []float64{
	.00005, .0001, .00025, .0005, .00075, .001, .00125, .0015, .002, .0025, .003, .004, .005, .0075,
	.01, .025, .05, .1, .25, .5, 1,
}

// NewAPI registers the metrics of cmd/api.
func NewAPI(reg prometheus.Registerer) *API {
	m := &API{
		outcomes: counters("idempotency_requests_total",
			"Requests with an Idempotency-Key by outcome: new (executed), replay (the stored answer), "+
				"mismatch (422, key used for another request), "+
				"in_progress (409, its first attempt still runs), "+
				"invalid (400, key missing or malformed), unreadable (503, stored by a newer version), "+
				"busy (503, an account is locked by another session).", "outcome"),
		claims: histogram("idempotency_claim_seconds",
			"Time to claim the keys of one transaction: one round trip to Postgres. It grows with the "+
				"network or with a database in trouble, never with waiting for another request.",
			claimBuckets),
		requests: counters("http_requests_total",
			"Requests answered, by route, method and status. Only 503: the database cannot be reached; "+
				"the requests are safe to repeat.", "route", "method", "status"),
		seconds: histograms("http_request_seconds",
			"Time from the request's header to the end of the answer, by route.", waiting, "route"),

		webhooks: counters("psp_webhooks_total",
			"Webhooks of the PSP by outcome: applied, repeated, conflict and unbookable (an operator is "+
				"needed, see the log), unknown (no operation of ours), ignored (another type), malformed, "+
				"forged (401), failed (503, the PSP sends it again).", "outcome"),

		batchSize: histogram("commit_batch_requests",
			"Requests in one transaction. It grows with the load; when it is BATCH_MAX all the time, "+
				"more requests arrive than can be committed.",
			[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}),
		batchWait: histogram("commit_wait_seconds",
			"Time that the oldest request of a transaction waited for a committer.", waiting),
		batchTime: histograms("commit_seconds",
			"Time of one transaction from BEGIN to the reply to COMMIT, including repeats after a lost "+
				"race or a lost reply, by outcome: done or failed.", waiting, "outcome"),
	}

	// Starting at 0 makes the first one show in a rate.
	outcomes := []string{"new", "replay", "mismatch", "in_progress", "invalid", "unreadable", "busy", "moving"}
	for _, outcome := range outcomes {
		m.outcomes.WithLabelValues(outcome)
	}

	webhooks := []string{
		"applied", "repeated", "conflict", "unbookable", "unknown", "ignored", "malformed", "forged", "failed",
	}
	for _, outcome := range webhooks {
		m.webhooks.WithLabelValues(outcome)
	}

	for _, outcome := range []string{"done", "failed"} {
		m.batchTime.WithLabelValues(outcome)
	}

	reg.MustRegister(m.webhooks, m.outcomes, m.claims, m.requests, m.seconds)
	reg.MustRegister(m.batchSize, m.batchWait, m.batchTime)
	return m
}

// WatchQueue registers the number of requests that wait for a committer.
func WatchQueue(reg prometheus.Registerer, length func() int) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "commit_queue_requests",
		Help: "Requests that wait for a committer. At 1,000 further ones are answered 503.",
	}, func() float64 { return float64(length()) }))
}

// Batch counts one transaction's requests, and how long the oldest waited for it.
func (m *API) Batch(requests int, waited time.Duration) {
	m.batchSize.Observe(float64(requests))
	m.batchWait.Observe(waited.Seconds())
}

// Committed records how long one transaction took. ctx has its span.
func (m *API) Committed(ctx context.Context, took time.Duration, failed bool) {
	outcome := "done"
	if failed {
		outcome = "failed"
	}
	observe(ctx, m.batchTime.WithLabelValues(outcome), took.Seconds())
}

// Outcome counts one request with a key.
func (m *API) Outcome(outcome string) { m.outcomes.WithLabelValues(outcome).Inc() }

// Webhook counts one webhook of the PSP.
func (m *API) Webhook(outcome string) { m.webhooks.WithLabelValues(outcome).Inc() }

// Claimed records how long the claim of one transaction took.
func (m *API) Claimed(took time.Duration) { m.claims.Observe(took.Seconds()) }

// Request counts one answered request. ctx has its span. route is the pattern, never the path;
// empty: none matched.
func (m *API) Request(
	ctx context.Context, route, method string, status int, took time.Duration,
) {
	if route == "" {
		route = "unmatched"
	}

	m.requests.WithLabelValues(route, knownMethod(method), strconv.Itoa(status)).Inc()
	observe(ctx, m.seconds.WithLabelValues(route), took.Seconds())
}

// knownMethod keeps clients from creating a time series for every word they send as a method.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
		http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

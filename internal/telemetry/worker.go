package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Worker holds the metrics of cmd/worker. Every instance shows what is measured in the database, and
// stops showing it when it cannot be measured.
type Worker struct {
	expired prometheus.Counter
	seconds prometheus.Histogram
	errors  prometheus.Counter
	overdue *prometheus.GaugeVec
	stalled *prometheus.GaugeVec
	books   *prometheus.GaugeVec
}

// NewWorker registers the metrics of cmd/worker.
func NewWorker(reg prometheus.Registerer) *Worker {
	m := &Worker{
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "expiry_payments_total",
			Help: "Payments whose hold this instance released because their time was over.",
		}),
		seconds: histogram("expiry_batch_seconds",
			"Time of the transaction that released up to 100 holds.", waiting),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "expiry_errors_total",
			Help: "Batches that failed and are retried; the log has the cause.",
		}),
		overdue: measured("expiry_oldest_overdue_seconds",
			"For how long the oldest authorization that is over has kept its hold; 0: none is over. "+
				"Every instance measures it: alert on it to notice a worker that does not work."),
		stalled: gauges("worker_stalled",
			"1: work of this part (expiry, psp, webhooks) waits and the database has seen none of it end for "+
				"some minutes; 0: it moves, or nothing waits. /readyz has the reason.", "part"),
		books: gauges("books_wrong",
			"By check. currencies: how many have balances that do not sum to zero. accounts: how many do not "+
				"agree with their newest ledger entries, in the last walk through all or in the present one. "+
				"Every instance measures it; the log has the names. Must be 0.", "check"),
	}

	reg.MustRegister(m.expired, m.seconds, m.errors, m.overdue, m.stalled, m.books)
	return m
}

// Expired counts a batch of payments whose holds were released.
func (m *Worker) Expired(payments int, took time.Duration) {
	m.expired.Add(float64(payments))
	m.seconds.Observe(took.Seconds())
}

// Error counts a batch that failed.
func (m *Worker) Error() { m.errors.Inc() }

// Overdue sets for how long the oldest authorization that is over has kept its hold.
func (m *Worker) Overdue(age time.Duration) { set(m.overdue, age.Seconds()) }

// NoOverdue is called when that could not be measured: the last value would look as if all were well.
func (m *Worker) NoOverdue() { m.overdue.Reset() }

// Stalled sets whether work of a part waits and none ends.
func (m *Worker) Stalled(part string, stalled bool) {
	m.stalled.WithLabelValues(part).Set(number(stalled))
}

// NoStalled is called when that could not be measured.
func (m *Worker) NoStalled(part string) { m.stalled.DeleteLabelValues(part) }

// Books sets how much a check of the books found wrong: currencies or accounts.
func (m *Worker) Books(check string, wrong int) {
	m.books.WithLabelValues(check).Set(float64(wrong))
}

// NoBooks is called when a check could not be made.
func (m *Worker) NoBooks(check string) { m.books.DeleteLabelValues(check) }

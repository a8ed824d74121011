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
	}

	reg.MustRegister(m.expired, m.seconds, m.errors, m.overdue)
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

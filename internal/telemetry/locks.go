package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Locks holds the metrics of who waits for a lock in the database. Every relay measures them.
type Locks struct{ waiting, oldest *prometheus.GaugeVec }

// NewLocks registers them.
func NewLocks(reg prometheus.Registerer) *Locks {
	m := &Locks{
		waiting: measured("db_lock_waiting_sessions",
			"Sessions of the database that wait for a lock. Above 0 for more than a moment: a person, a job "+
				"or a migration holds what payments need."),
		oldest: measured("db_lock_oldest_wait_seconds",
			"For how long the first of them has waited; 0: none waits."),
	}

	reg.MustRegister(m.waiting, m.oldest)
	return m
}

// Waiting sets how many sessions wait for a lock, and for how long the first of them has.
func (m *Locks) Waiting(sessions int64, oldest time.Duration) {
	set(m.waiting, float64(sessions))
	set(m.oldest, oldest.Seconds())
}

// NotMeasured is called when that could not be measured: the last values would look as if all were
// well.
func (m *Locks) NotMeasured() {
	m.waiting.Reset()
	m.oldest.Reset()
}

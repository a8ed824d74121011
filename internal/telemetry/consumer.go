package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Consumer is what cmd/consumer counts.
type Consumer struct {
	events  *prometheus.CounterVec
	lag     *prometheus.GaugeVec
	seconds prometheus.Histogram
}

// NewConsumer registers the metrics of cmd/consumer.
func NewConsumer(reg prometheus.Registerer) *Consumer {
	m := &Consumer{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inbox_events_total",
			Help: "Events received by outcome: processed (took effect), duplicate (had taken effect before; normal after a crash or a rebalance), failed (will be tried again).",
		}, []string{"outcome"}),
		lag: measured("consumer_lag_events",
			"Events on the partitions assigned to this instance that are not processed yet."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "inbox_event_seconds",
			Help:    "Time of the transaction that an event was handled in, alone or with others.",
			Buckets: waiting,
		}),
	}
	for _, outcome := range []string{"processed", "duplicate", "failed"} {
		m.events.WithLabelValues(outcome)
	}
	reg.MustRegister(m.events, m.lag, m.seconds)
	return m
}

// Event counts one event: processed, duplicate or failed.
func (m *Consumer) Event(outcome string, took time.Duration) {
	m.events.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
}

// Lag sets how many events of the assigned partitions are not processed yet.
func (m *Consumer) Lag(events int64) { set(m.lag, float64(events)) }

package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Consumer holds the metrics of cmd/consumer.
type Consumer struct {
	events  *prometheus.CounterVec
	lag     *prometheus.GaugeVec
	seconds prometheus.Histogram
	letters *prometheus.GaugeVec
	parked  *prometheus.GaugeVec
	gaps    *prometheus.CounterVec
	short   *prometheus.GaugeVec
	stalled *prometheus.GaugeVec
}

// NewConsumer registers the metrics of cmd/consumer.
func NewConsumer(reg prometheus.Registerer) *Consumer {
	m := &Consumer{
		events: counters("inbox_events_total",
			"Events received by outcome: processed (took effect), "+
				"duplicate (took effect before; normal after a crash or a rebalance), "+
				"failed (will be retried), parked (a dead letter, or waits behind one).", "outcome"),
		lag: measured("consumer_lag_events",
			"Events on the partitions assigned to this instance that are not processed yet."),
		seconds: histogram("inbox_event_seconds",
			"Time of the transaction that handled an event, alone or with others.", waiting),
		letters: measured("inbox_dead_letters",
			"Events that cannot be processed and await an operator's decision. "+
				"At the limit (20) partitions stop instead of parking more."),
		parked: measured("inbox_parked_aggregates",
			"Aggregates that wait because one of their events is a dead letter."),
		gaps: counters("inbox_sequence_gaps_total",
			"Events whose ce_sequence does not follow: missing (numbers were skipped), "+
				"repeated (a new event with a number already reached), "+
				"unknown (the first known event of its aggregate is not number 1).", "kind"),
		stalled: measured("consumer_stalled",
			"1: records wait on a partition of this instance and the broker has seen no offset of it move "+
				"for 50 s; 0: all move, or nothing waits. /readyz names partition and reason."),
		short: measured("inbox_retention_short",
			"1: the topics may keep records for longer than the inbox remembers them, or do not say; "+
				"nothing is dropped from the inbox. 0: it is long enough."),
	}

	for _, outcome := range []string{"processed", "duplicate", "failed", "parked"} {
		m.events.WithLabelValues(outcome)
	}
	for _, kind := range []string{"missing", "repeated", "unknown"} {
		m.gaps.WithLabelValues(kind)
	}

	reg.MustRegister(m.events, m.lag, m.seconds, m.letters, m.parked, m.gaps, m.short,
		m.stalled)
	return m
}

// Event counts one event: processed, duplicate, failed or parked.
func (m *Consumer) Event(outcome string, took time.Duration) {
	m.events.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
}

// Lag sets how many events of the assigned partitions are not processed yet.
func (m *Consumer) Lag(events int64) { set(m.lag, float64(events)) }

// Letters sets how many dead letters await a decision, and how many aggregates are parked.
func (m *Consumer) Letters(undecided, aggregates int64) {
	set(m.letters, float64(undecided))
	set(m.parked, float64(aggregates))
}

// Gap counts an event that is out of sequence: missing, repeated or unknown.
func (m *Consumer) Gap(kind string) { m.gaps.WithLabelValues(kind).Inc() }

// Horizon sets whether the inbox remembers events for long enough; short says why it may not.
func (m *Consumer) Horizon(short error) {
	set(m.short, number(short != nil))
}

// Stalled sets whether records wait on a partition and none of them is done; why says which.
func (m *Consumer) Stalled(why error) { set(m.stalled, number(why != nil)) }

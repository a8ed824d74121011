package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Relay is what cmd/relay counts. A standby shows no backlog: only the leader measures it.
type Relay struct {
	backlog, oldest            *prometheus.GaugeVec
	published                  prometheus.Counter
	batch, seconds, reading    prometheus.Histogram
	leader                     prometheus.Gauge
	errors                     *prometheus.CounterVec
	outboxDefault, keysDefault *prometheus.GaugeVec
	daysAhead                  *prometheus.GaugeVec
}

// NewRelay registers the metrics of cmd/relay.
func NewRelay(reg prometheus.Registerer) *Relay {
	m := &Relay{
		backlog: measured("outbox_backlog_events",
			"Committed events not yet acknowledged by Kafka. Shown by the leader only. Growing with relay_leader 1: the broker is slow or away (relay_errors_total says which); nothing is lost."),
		oldest: measured("outbox_oldest_unsent_seconds",
			"Age of the oldest event not yet acknowledged by Kafka: how far consumers are behind. Shown by the leader only."),
		published: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "relay_events_published_total",
			Help: "Events acknowledged by Kafka, repeats after a crash included.",
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_batch_events",
			Help:    "Events in one batch. At RELAY_BATCH all the time: the relay is catching up.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000},
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_publish_seconds",
			Help:    "Time from sending a batch to Kafka's last acknowledgement.",
			Buckets: waiting,
		}),
		reading: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_read_seconds",
			Help:    "Time of one read of the outbox that found events. Growing with the backlog: its plan is wrong.",
			Buckets: waiting,
		}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "relay_leader",
			Help: "1 if this instance holds the lease, 0 if it stands by. The sum over all instances of one RELAY_NAME is 1; 0 for longer than a few leases: nobody sends.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "relay_errors_total",
			Help: "Rounds of the relay that failed: publish (a term as leader ended early, or nobody could be elected), partitions (they could not be kept), partitions_busy (writers held them; normal now and then). Each is tried again; the log has the cause.",
		}, []string{"kind"}),
		outboxDefault: measured("outbox_default_partition_rows",
			"Rows in the outbox's default partition. Must be 0: more means that a day's partition was missing when they came. The relay moves them; if they stay, its log says why."),
		keysDefault: measured("idempotency_default_partition_rows",
			"Rows in the default partition of the idempotency keys. Must be 0: more means that a day's partition was missing when they came. The relay moves them; if they stay, its log says why."),
		daysAhead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "partitions_days_ahead",
			Help: "Days after today (UTC) for which a table has its partition. Usually 7; below 2, partitions are no longer made: look at relay_leader and relay_errors_total.",
		}, []string{"table"}),
	}
	for _, kind := range []string{"publish", "partitions", "partitions_busy"} {
		m.errors.WithLabelValues(kind) // from 0 on, so that the first one shows in a rate
	}
	reg.MustRegister(m.backlog, m.oldest, m.published, m.batch, m.seconds, m.reading, m.leader, m.errors, m.outboxDefault, m.keysDefault, m.daysAhead)
	return m
}

// Backlog sets how many committed events are not sent yet, and the age of the oldest.
func (m *Relay) Backlog(events int64, oldest time.Duration) {
	set(m.backlog, float64(events))
	set(m.oldest, oldest.Seconds())
}

// Read counts one read of the outbox that found events.
func (m *Relay) Read(_ int, took time.Duration) { m.reading.Observe(took.Seconds()) }

// Published counts one batch that Kafka acknowledged.
func (m *Relay) Published(events int, took time.Duration) {
	m.published.Add(float64(events))
	m.batch.Observe(float64(events))
	m.seconds.Observe(took.Seconds())
}

// Leader sets whether this instance leads. One that stops leading shows its backlog no longer: it would stand still.
func (m *Relay) Leader(leads bool) {
	if leads {
		m.leader.Set(1)
		return
	}
	m.leader.Set(0)
	m.backlog.Reset()
	m.oldest.Reset()
}

// Error counts one failure. Kinds are few and fixed: they are label values.
func (m *Relay) Error(kind string) { m.errors.WithLabelValues(kind).Inc() }

// OutboxDefaultRows sets how many rows stand in the default partition of outbox_events.
func (m *Relay) OutboxDefaultRows(n int64) { set(m.outboxDefault, float64(n)) }

// KeysDefaultRows sets how many rows stand in the default partition of idempotency_keys.
func (m *Relay) KeysDefaultRows(n int64) { set(m.keysDefault, float64(n)) }

// DaysAhead sets for how many days after today a table has its partition.
func (m *Relay) DaysAhead(table string, days int) {
	m.daysAhead.WithLabelValues(table).Set(float64(days))
}

package telemetry

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Relay is what cmd/relay counts. What is measured in the database every instance shows, leader or
// not, and shows it no longer when it cannot be measured.
type Relay struct {
	backlog, oldest, letters, parked, writer *prometheus.GaugeVec
	published                                prometheus.Counter
	batch, seconds, reading, age             prometheus.Histogram
	leader                                   prometheus.Gauge
	errors                                   *prometheus.CounterVec
	daysAhead                                *prometheus.GaugeVec

	topics  *prometheus.GaugeVec
	changed *prometheus.GaugeVec
	mu      sync.Mutex
	failing map[string]time.Time // the topics it shows, and when each failed last
}

// NewRelay registers the metrics of cmd/relay.
func NewRelay(reg prometheus.Registerer) *Relay {
	m := &Relay{
		backlog: measured("outbox_backlog_events",
			"Committed events not yet acknowledged by Kafka; ids that were rolled back count as well. Every instance measures it. Growing: look at relay_errors_total; nothing is lost."),
		oldest: measured("outbox_oldest_unsent_seconds",
			"Age of the oldest event not yet acknowledged by Kafka, parked ones aside: how far consumers are behind. Every instance measures it, whoever leads: the alarm for a relay that does not relay."),
		letters: measured("outbox_dead_letters",
			"Events that Kafka refused for what they are, and that nobody has decided on. Must be 0: relay dead-letters list shows them."),
		parked: measured("outbox_parked_aggregates",
			"Aggregates of which nothing is sent, because an event of them was refused. All others flow."),
		writer: measured("outbox_oldest_writer_seconds",
			"For how long the oldest open transaction that has written something has been seen by this instance, to within 2 s. Its own events wait for it, no others do."),
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
		age: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_commit_to_acknowledge_seconds",
			Help:    "For each event, the time from created_at to the acknowledgement of its whole batch. created_at is when the writer's transaction began, by the database's clock, so this is a little more than the time from COMMIT: the transaction itself is in it, and so is what the clocks of database and relay differ by. Events that are sent again are observed again.",
			Buckets: append(waiting[:len(waiting):len(waiting)], 60, 300, 1800, 7200),
		}),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "relay_leader",
			Help: "1 if this instance leads, 0 if it stands by. For a moment after a change of leader two may show 1: the old one does not know yet, and moves nothing any more. Alarms look at outbox_oldest_unsent_seconds.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "relay_errors_total",
			Help: "What failed and is tried again, the log has the cause: database (it could not be asked), broker (Kafka could not be reached or did not answer), topic (one is missing or forbidden, or its partitions changed, see relay_topic_unavailable), refused (Kafka will not take an event; the relay finds out which), fenced (another one has become leader), partitions (they could not be kept), partitions_busy (writers held them; normal now and then).",
		}, []string{"kind"}),
		topics: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "relay_topic_unavailable",
			Help: "1 while this topic is missing, may not be written to, or has other partitions than before. Nothing goes past its next event, to no topic, until somebody mends it. Gone with the next batch that is sent, or a minute after this instance tried last.",
		}, []string{"topic"}),
		changed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "relay_topic_partitions_changed",
			Help: "1 while this topic has another number of partitions (now) than its events were sent with (sent). With RELAY_PARTITION_CHANGE=refuse nothing goes past its next event until an operator decides. Gone like relay_topic_unavailable.",
		}, []string{"topic", "sent", "now"}),
		failing: map[string]time.Time{},
		daysAhead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "partitions_days_ahead",
			Help: "Days after today (UTC) for which a table has its partition. Usually 7; below 2, partitions are no longer made: look at relay_leader and relay_errors_total.",
		}, []string{"table"}),
	}
	for _, kind := range []string{"database", "broker", "topic", "refused", "fenced", "partitions", "partitions_busy"} {
		m.errors.WithLabelValues(kind) // from 0 on, so that the first one shows in a rate
	}
	reg.MustRegister(m.backlog, m.oldest, m.letters, m.parked, m.writer, m.published, m.batch, m.seconds, m.reading, m.age, m.leader, m.errors, m.topics, m.changed,
		m.daysAhead)
	return m
}

// Backlog sets how many committed events are not sent yet, the age of the oldest, how many were
// refused, and how many aggregates wait for those.
func (m *Relay) Backlog(events int64, oldest time.Duration, refused, parked int64) {
	set(m.backlog, float64(events))
	set(m.oldest, oldest.Seconds())
	set(m.letters, float64(refused))
	set(m.parked, float64(parked))
}

// NoBacklog says that nobody could measure it: what was set last would stand still, as if all were
// well.
func (m *Relay) NoBacklog() {
	for _, g := range []*prometheus.GaugeVec{m.backlog, m.oldest, m.letters, m.parked} {
		g.Reset()
	}
}

// OldestWriter sets for how long the oldest writing transaction has been open.
func (m *Relay) OldestWriter(age time.Duration) { set(m.writer, age.Seconds()) }

// NoWriter says that nobody could look for it.
func (m *Relay) NoWriter() { m.writer.Reset() }

// Read counts one read of the outbox that found events.
func (m *Relay) Read(_ int, took time.Duration) { m.reading.Observe(took.Seconds()) }

// Published counts one batch that Kafka acknowledged. So its topics are there.
func (m *Relay) Published(events int, took time.Duration) {
	m.published.Add(float64(events))
	m.batch.Observe(float64(events))
	m.seconds.Observe(took.Seconds())
	m.forget(time.Now())
}

// Acknowledged counts one event of a batch that Kafka acknowledged, by its age. It is cheap enough
// for each (BenchmarkAcknowledged).
func (m *Relay) Acknowledged(age time.Duration) { m.age.Observe(age.Seconds()) }

// Leader sets whether this instance leads.
func (m *Relay) Leader(leads bool) {
	if leads {
		m.leader.Set(1)
		return
	}
	m.leader.Set(0)
}

// Error counts one failure. Kinds are few and fixed: they are label values.
func (m *Relay) Error(kind string) { m.errors.WithLabelValues(kind).Inc() }

// TopicUnavailable shows that a topic was missing or forbidden just now.
func (m *Relay) TopicUnavailable(topic string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing[topic] = time.Now()
	m.topics.WithLabelValues(topic).Set(1)
}

// PartitionsChanged shows that a topic has another number of partitions than its events were sent
// with. Call TopicUnavailable as well: together they are forgotten.
func (m *Relay) PartitionsChanged(topic string, sent, now int32) {
	m.changed.WithLabelValues(topic, strconv.Itoa(int(sent)), strconv.Itoa(int(now))).Set(1)
}

// TopicMemory is longer than the time between two tries of a relay that leads: who has tried
// nothing since then stands by, and it is for the leader to show what fails.
const TopicMemory = time.Minute

// ForgetTopics takes back what failed longer ago than TopicMemory. Call it now and then.
func (m *Relay) ForgetTopics(now time.Time) { m.forget(now.Add(-TopicMemory)) }

// forget takes back what failed before that time.
func (m *Relay) forget(before time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, failed := range m.failing {
		if failed.Before(before) {
			delete(m.failing, topic)
			m.topics.DeleteLabelValues(topic)
			m.changed.DeletePartialMatch(prometheus.Labels{"topic": topic})
		}
	}
}

// DaysAhead sets for how many days after today a table has its partition.
func (m *Relay) DaysAhead(table string, days int) {
	m.daysAhead.WithLabelValues(table).Set(float64(days))
}

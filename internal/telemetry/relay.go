package telemetry

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Relay holds the metrics of cmd/relay. Every instance, leader or not, shows what is measured in
// the database, and stops showing it when it cannot be measured.
type Relay struct {
	backlog, oldest, letters, parked, writer *prometheus.GaugeVec
	stalled, snapshotAge, snapshotSize       *prometheus.GaugeVec
	published                                prometheus.Counter
	batch, seconds, reading, age             prometheus.Histogram
	leader                                   prometheus.Gauge
	errors                                   *prometheus.CounterVec
	daysAhead                                *prometheus.GaugeVec

	copies, wanted *prometheus.GaugeVec

	topics  *prometheus.GaugeVec
	changed *prometheus.GaugeVec
	mu      sync.Mutex
	failing map[string]time.Time // the topics shown, and when each failed last
}

// NewRelay registers the metrics of cmd/relay.
func NewRelay(reg prometheus.Registerer) *Relay {
	m := &Relay{failing: map[string]time.Time{}}

	// The outbox, measured by every instance.
	m.backlog = measured("outbox_backlog_events",
		"Committed events not yet acknowledged by Kafka, including ids that were rolled back. "+
			"Every instance measures it. Growing: look at relay_errors_total; nothing is lost.")
	m.oldest = measured("outbox_oldest_unsent_seconds",
		"Age of the oldest event not yet acknowledged by Kafka, parked ones aside: how far consumers "+
			"are behind. Every instance measures it: alert on it to notice a relay that does not relay.")
	m.letters = measured("outbox_dead_letters",
		"Events that Kafka rejected and that await an operator's decision. Must be 0: "+
			"relay dead-letters list shows them.")
	m.parked = measured("outbox_parked_aggregates",
		"Aggregates of which nothing is sent because one of their events was rejected. "+
			"All others flow.")
	m.writer = measured("outbox_oldest_writer_seconds",
		"How long this instance has seen the oldest open transaction that wrote something, to within "+
			"2 s. Its own events wait for it, no others do.")
	m.stalled = measured("relay_stalled",
		"1: events wait and the cursor has not moved for 5 leases, as the database shows it; 0: it moves, "+
			"or nothing waits. Every instance measures it; /readyz of the one that led last has the reason.")
	m.snapshotAge = gauges("oldest_snapshot_seconds",
		"How long this instance has seen the oldest snapshot that a session, a replication slot or a "+
			"standby holds, to within 2 s; 0: none. Vacuum cleans up nothing newer, and accounts that "+
			"change often become slow.", "kind")
	m.snapshotSize = gauges("oldest_snapshot_transactions",
		"How many transactions have begun since the oldest snapshot that a session, a replication slot "+
			"or a standby holds.", "kind")
	m.daysAhead = gauges("partitions_days_ahead",
		"Days after today (UTC) for which a table has its partition. Usually 7; below 2, partitions "+
			"are no longer made: look at relay_leader and relay_errors_total.", "table")

	// The leader's work.
	m.published = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "relay_events_published_total",
		Help: "Events acknowledged by Kafka, including repeats after a crash.",
	})
	m.batch = histogram("relay_batch_events",
		"Events in one batch. At RELAY_BATCH all the time: the relay is catching up.",
		[]float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000})
	m.seconds = histogram("relay_publish_seconds",
		"Time from sending a batch to Kafka's last acknowledgement.", waiting)
	m.reading = histogram("relay_read_seconds",
		"Time of one read of the outbox that found events. Growing with the backlog: a wrong plan.",
		waiting)
	m.age = histogram("relay_commit_to_acknowledge_seconds",
		"For each event, the time from created_at to the acknowledgement of its whole batch. "+
			"created_at is when the writer's transaction began, by the database's clock, so it includes "+
			"the transaction itself and the difference between the clocks of database and relay. "+
			"Events that are sent again are observed again.",
		append(waiting[:len(waiting):len(waiting)], 60, 300, 1800, 7200))
	m.leader = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "relay_leader",
		Help: "1 if this instance leads, 0 if it is a standby. Just after a change of leader two may " +
			"show 1: the old one has not noticed yet, and can move nothing. " +
			"Alert on outbox_oldest_unsent_seconds instead.",
	})

	// What fails.
	m.errors = counters("relay_errors_total",
		"Failures that are retried; the log has the cause. database: it could not be asked. "+
			"broker: Kafka could not be reached or did not answer. topic: one is missing or forbidden, or "+
			"its partitions changed, see relay_topic_unavailable. refused: Kafka will not take an event; "+
			"the relay finds out which. fenced: another instance has become leader. partitions: they "+
			"could not be kept. partitions_busy: writers held them; normal now and then.", "kind")
	m.topics = gauges("relay_topic_unavailable",
		"1 while this topic is missing, may not be written to, or has other partitions than before. "+
			"Nothing passes its next event, to any topic, until that is fixed. Gone with the next batch "+
			"that is sent, or a minute after this instance last tried.", "topic")
	m.changed = gauges("relay_topic_partitions_changed",
		"1 while this topic has another number of partitions (now) than its events were sent with "+
			"(sent). With RELAY_PARTITION_CHANGE=refuse nothing passes its next event until an operator "+
			"decides. Gone like relay_topic_unavailable.", "topic", "sent", "now")

	// Kafka's promise, asked for by every instance.
	m.copies = gauges("relay_topic_copies",
		"How many copies an event that Kafka acknowledged has at least: min.insync.replicas of the "+
			"topic, or its replicas if they are fewer. With 1 the loss of one broker may lose events that "+
			"were acknowledged. Absent while it is unknown.", "topic")
	m.wanted = measured("relay_topic_copies_wanted",
		"How many copies there should be: TOPIC_MIN_INSYNC, or 2.")

	// Starting at 0 makes the first one show in a rate.
	kinds := []string{"database", "broker", "topic", "refused", "fenced", "partitions"}
	for _, kind := range append(kinds, "partitions_busy") {
		m.errors.WithLabelValues(kind)
	}

	reg.MustRegister(m.backlog, m.oldest, m.letters, m.parked, m.writer, m.daysAhead)
	reg.MustRegister(m.stalled, m.snapshotAge, m.snapshotSize)
	reg.MustRegister(m.published, m.batch, m.seconds, m.reading, m.age, m.leader)
	reg.MustRegister(m.errors, m.topics, m.changed, m.copies, m.wanted)
	return m
}

// Backlog sets how many committed events are not sent yet, the age of the oldest, how many were
// rejected, and how many aggregates wait for those.
func (m *Relay) Backlog(events int64, oldest time.Duration, refused, parked int64) {
	set(m.backlog, float64(events))
	set(m.oldest, oldest.Seconds())
	set(m.letters, float64(refused))
	set(m.parked, float64(parked))
}

// NoBacklog is called when the backlog could not be measured: the last values would look as if all
// were well.
func (m *Relay) NoBacklog() {
	for _, g := range []*prometheus.GaugeVec{m.backlog, m.oldest, m.letters, m.parked} {
		g.Reset()
	}
}

// OldestWriter sets for how long the oldest writing transaction has been open.
func (m *Relay) OldestWriter(age time.Duration) { set(m.writer, age.Seconds()) }

// NoWriter is called when the oldest writer could not be looked up.
func (m *Relay) NoWriter() { m.writer.Reset() }

// Stalled sets whether events wait and none moves.
func (m *Relay) Stalled(stalled bool) { set(m.stalled, number(stalled)) }

// NoStalled is called when that could not be measured.
func (m *Relay) NoStalled() { m.stalled.Reset() }

// OldestSnapshot sets for how long a snapshot of this kind was seen, and how many transactions have
// begun since.
func (m *Relay) OldestSnapshot(kind string, age time.Duration, transactions int64) {
	m.snapshotAge.WithLabelValues(kind).Set(age.Seconds())
	m.snapshotSize.WithLabelValues(kind).Set(float64(transactions))
}

// NoSnapshot is called when the oldest snapshots could not be looked up.
func (m *Relay) NoSnapshot() {
	m.snapshotAge.Reset()
	m.snapshotSize.Reset()
}

// Read counts one read of the outbox that found events.
func (m *Relay) Read(_ int, took time.Duration) { m.reading.Observe(took.Seconds()) }

// Published counts one batch that Kafka acknowledged, so its topics are available.
func (m *Relay) Published(events int, took time.Duration) {
	m.published.Add(float64(events))
	m.batch.Observe(float64(events))
	m.seconds.Observe(took.Seconds())

	m.forget(time.Now())
}

// Acknowledged counts one event of a batch that Kafka acknowledged, by its age. ctx has the span of
// its request. It is cheap enough to be called for each (BenchmarkAcknowledged).
func (m *Relay) Acknowledged(ctx context.Context, age time.Duration) {
	observe(ctx, m.age, age.Seconds())
}

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
// with. Call TopicUnavailable as well: the two are forgotten together.
func (m *Relay) PartitionsChanged(topic string, sent, now int32) {
	// It may have changed again.
	m.changed.DeletePartialMatch(prometheus.Labels{"topic": topic})
	m.changed.WithLabelValues(topic, strconv.Itoa(int(sent)), strconv.Itoa(int(now))).Set(1)
}

// TopicMemory is longer than a leader's pause between two attempts. An instance that has not tried
// for so long is a standby, and its leader shows what fails.
const TopicMemory = time.Minute

// ForgetTopics drops the topics that failed longer ago than TopicMemory. Call it now and then.
func (m *Relay) ForgetTopics(now time.Time) { m.forget(now.Add(-TopicMemory)) }

// forget drops the topics that failed before that time.
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

// CopiesWanted sets how many copies of an acknowledged event there should be.
func (m *Relay) CopiesWanted(copies int) { set(m.wanted, float64(copies)) }

// Copies sets how many copies of an acknowledged event a topic has at least.
func (m *Relay) Copies(topic string, copies int) {
	m.copies.WithLabelValues(topic).Set(float64(copies))
}

// NoCopies is called when that could not be measured of these topics; without one, of any.
func (m *Relay) NoCopies(topics ...string) {
	if len(topics) == 0 {
		m.copies.Reset()
	}
	for _, topic := range topics {
		m.copies.DeleteLabelValues(topic)
	}
}

// DaysAhead sets for how many days after today a table has its partition.
func (m *Relay) DaysAhead(table string, days int) {
	m.daysAhead.WithLabelValues(table).Set(float64(days))
}

// NoDaysAhead is called when that could not be measured.
func (m *Relay) NoDaysAhead() { m.daysAhead.Reset() }

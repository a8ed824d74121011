package main

import (
	"context"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/internal/testenv"
)

// watched is a relay's view of a cluster with three brokers, whose topics have the copies of a broker's defaults.
type watched struct {
	*copies
	cluster *kfake.Cluster
	admin   *kadm.Client
	reg     *prometheus.Registry
	text    *buffer
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)

	w := &watched{cluster: cluster, admin: kadm.NewClient(client), reg: prometheus.NewRegistry(), text: &buffer{}}
	w.copies = &copies{
		producer: kafka.Producer{Brokers: cluster.ListenAddrs(), TopicPrefix: "oncepay.", Topics: topics},
		relay:    "main", metrics: telemetry.NewRelay(w.reg), log: slog.New(slog.NewTextHandler(w.text, nil)), said: map[string]kafka.Copies{},
	}
	return w
}

// names are the topics that the relay asks about.
var names = []string{"oncepay.payments", "oncepay.accounts", "oncepay.webhook-endpoints", "oncepay.relay-progress.main"}

func (w *watched) makeTopics(t *testing.T) {
	t.Helper()
	if _, err := w.admin.CreateTopics(t.Context(), 2, 3, nil, names...); err != nil {
		t.Fatal(err)
	}
}

// wantCopies fails unless these lines are all that the metric shows: a topic, and how many copies it has.
func (w *watched) wantCopies(t *testing.T, copies map[string]int) {
	t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "relay_topic_copies" {
				got[m.GetLabel()[0].GetValue()] = int(m.GetGauge().GetValue())
			}
		}
	}
	for _, name := range names {
		if want, is := copies[name]; got[name] != want || is != (want > 0) {
			t.Errorf("%s is shown with %d copies, want %d", name, got[name], want)
		}
	}
	if len(got) != len(copies) {
		t.Errorf("shown are %v, want %v", got, copies)
	}
}

func all(copies int) map[string]int {
	each := map[string]int{}
	for _, name := range names {
		each[name] = copies
	}
	return each
}

// TestDocumentedCommandsRaiseTheCopies runs the lines of "Copies in Kafka" in docs/operating.md.
func TestDocumentedCommandsRaiseTheCopies(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Copies in Kafka\n")
	section, _, _ = strings.Cut(section, "\n## ")
	lines := regexp.MustCompile(`(?m)^    kafka-configs\.sh .* --alter --entity-type topics \\\n +--entity-name (\S+) --add-config ([^=\s]+)=(\S+)$`).
		FindAllStringSubmatch(section, -1)
	if len(lines) != len(names) || strings.Count(section, "kafka-configs.sh ") != len(names) {
		t.Fatalf("the runbook has the lines %q", lines)
	}

	w := newWatched(t)
	w.makeTopics(t)
	w.measure(t.Context())
	w.wantCopies(t, all(1))
	for _, line := range lines {
		answers, err := w.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: line[2], Value: &line[3]}}, line[1])
		if err == nil {
			_, err = answers.On(line[1], func(r *kadm.AlterConfigsResponse) error { return r.Err })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.measure(t.Context())
	w.wantCopies(t, all(2))
}

func TestFewCopiesAreLoggedOnce(t *testing.T) {
	t.Parallel()
	const warning = "a topic keeps fewer copies of acknowledged events than wanted"
	w := newWatched(t)
	if w.measure(t.Context()) {
		t.Error("done, without topics")
	}
	w.makeTopics(t)
	for range 3 {
		if !w.measure(t.Context()) {
			t.Error("not done, with all topics")
		}
	}
	if text := w.text.String(); strings.Count(text, warning) != len(names) || strings.Count(text, "\n") != len(names) ||
		!strings.Contains(text, "topic=oncepay.payments copies=1 wanted=2 replicas=3 min_insync_replicas=1") {
		t.Errorf("log:\n%s", text)
	}

	// Enough for one who wants no more.
	w.wanted, w.said, w.text = 1, map[string]kafka.Copies{}, &buffer{}
	w.log = slog.New(slog.NewTextHandler(w.text, nil))
	w.measure(t.Context())
	if text := w.text.String(); text != "" {
		t.Errorf("log:\n%s", text)
	}

	w.producer.Replication = 4
	w.said = map[string]kafka.Copies{}
	w.measure(t.Context())
	if text := w.text.String(); strings.Count(text, "a topic has fewer replicas than TOPIC_REPLICATION") != len(names) {
		t.Errorf("log:\n%s", text)
	}
}

// TestUnknownCopiesAreAbsent: what may not be asked, or is not answered, is no failure and no number.
func TestUnknownCopiesAreAbsent(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.makeTopics(t)
	w.measure(t.Context())
	forbidden := w.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: "oncepay.payments", Err: kerr.TopicAuthorizationFailed, Count: -1})
	for range 2 {
		if !w.measure(t.Context()) {
			t.Error("not done, though another attempt would get the same answer")
		}
	}
	want := all(1)
	delete(want, "oncepay.payments")
	w.wantCopies(t, want)
	if text := w.text.String(); strings.Count(text, "copies of a topic not measured") != 1 || !strings.Contains(text, "TOPIC_AUTHORIZATION_FAILED") {
		t.Errorf("log:\n%s", text)
	}

	forbidden.Remove()
	w.measure(t.Context())
	w.wantCopies(t, all(1))
	w.cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if w.measure(ctx) {
		t.Error("done, without a broker")
	}
	w.wantCopies(t, map[string]int{})
}

// TestProgramMakesAndWatchesItsTopics: the variables reach Kafka, and the metrics show what became of them.
func TestProgramMakesAndWatchesItsTopics(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	db := testenv.Database(t)
	env := map[string]string{"DATABASE_URL": db.URLAs("relay") + "&statement_timeout=60s", "RELAY_LEASE": "30s", "KAFKA_BROKERS": strings.Join(w.cluster.ListenAddrs(), ","), "ADMIN_ADDR": "127.0.0.1:0",
		"TOPIC_PARTITIONS": "5", "TOPIC_REPLICATION": "3", "TOPIC_MIN_INSYNC": "3"}
	i := start(t, func(name string) string { return env[name] })
	lines := []string{"relay_topic_copies_wanted 3"}
	for _, name := range names {
		lines = append(lines, `relay_topic_copies\{topic="`+regexp.QuoteMeta(name)+`"\} 3`)
	}
	testenv.Eventually(t, soon, func() error { return i.shows(lines...) })

	made, err := w.admin.ListTopics(t.Context(), "oncepay.payments")
	if n := len(made["oncepay.payments"].Partitions); err != nil || n != 5 {
		t.Errorf("%d partitions, want 5: %v", n, err)
	}

	if strings.Contains(i.log.String(), `"level":"WARN"`) {
		t.Errorf("log:\n%s", i.log.String())
	}
}

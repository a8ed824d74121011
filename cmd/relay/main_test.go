package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

const soon = 30 * time.Second

// buffer is written by the program while the test reads.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// instance is one relay, run until the test ends.
type instance struct {
	log   buffer
	admin string // its private listener
}

func start(t *testing.T, getenv func(string) string) *instance {
	t.Helper()
	i := &instance{}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := run(ctx, getenv, &i.log)
		for tries := 1; err != nil && tries < 3 && process.WasLate(err.Error()); tries++ {
			err = run(ctx, getenv, &i.log)
		}
		done <- err
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil || t.Failed() {
			t.Errorf("run: %v, log:\n%s", err, i.log.String())
		}
	})
	testenv.Eventually(t, soon, func() error {
		for line := range strings.Lines(i.log.String()) {
			var l struct {
				Admin string `json:"admin_addr"`
			}
			if json.Unmarshal([]byte(line), &l) == nil && l.Admin != "" {
				i.admin = l.Admin
				return nil
			}
		}
		return errors.New("it did not start")
	})
	return i
}

// shows says whether there is a line like each of these, which are regular expressions, in the metrics.
func (i *instance) shows(lines ...string) error {
	response, err := http.Get("http://" + i.admin + "/metrics")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	for _, line := range lines {
		if err == nil && !regexp.MustCompile(`(?m)^`+line+`$`).Match(text) {
			name := metricName.FindString(line)
			there := regexp.MustCompile(`(?m)^`+name+`\b.*$`).FindAllString(string(text), -1)
			err = fmt.Errorf("its metrics have no line %s, but %q", line, there)
		}
	}
	return err
}

var metricName = regexp.MustCompile(`^\w+`)

func TestMissingTopicIsShownByEveryInstance(t *testing.T) {
	t.Parallel()
	db, prefix := testenv.Database(t), testenv.TopicPrefix(t)
	env := map[string]string{"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": strings.Join(testenv.Brokers(t), ","), "TOPIC_PREFIX": prefix,
		"ADMIN_ADDR": "127.0.0.1:0"}
	getenv := func(name string) string { return env[name] }
	two := []*instance{start(t, getenv), start(t, getenv)}
	one := func(lines ...string) {
		t.Helper()
		testenv.Eventually(t, soon, func() error {
			first := two[0].shows(lines...)
			if first != nil && two[1].shows(lines...) == nil {
				return nil
			}
			return first
		})
	}
	both := func(lines ...string) {
		t.Helper()
		testenv.Eventually(t, soon, func() error { return errors.Join(two[0].shows(lines...), two[1].shows(lines...)) })
	}
	one("relay_leader 1")
	both("outbox_backlog_events 0", "outbox_oldest_unsent_seconds 0", "outbox_dead_letters 0", "outbox_parked_aggregates 0", `outbox_oldest_writer_seconds \S+`)

	// An idle leader keeps its lease.
	owner := db.Pool(t, "")
	var until time.Time
	if err := owner.QueryRow(t.Context(), `SELECT lease_until FROM outbox_cursors`).Scan(&until); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error {
		var kept bool
		err := owner.QueryRow(t.Context(), `SELECT lease_until > $1::timestamptz + interval '1 second' FROM outbox_cursors`, until).Scan(&kept)
		if err == nil && !kept {
			err = errors.New("the lease is not renewed")
		}
		return err
	})
	one("relay_leader 1")

	if _, err := owner.Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('nowhere', 'a', 'thing.changed', '{}')`); err != nil {
		t.Fatal(err)
	}
	unavailable := `relay_topic_unavailable\{topic="` + regexp.QuoteMeta(prefix) + `nowhere"\} 1`
	one(unavailable, `relay_errors_total\{kind="topic"\} [1-9].*`)
	both("outbox_backlog_events 1", `outbox_oldest_unsent_seconds [0-9.]*[1-9][0-9.]*`)

	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, nil, prefix+"nowhere"); err != nil {
		t.Fatal(err)
	}
	one(`relay_events_published_total [1-9]\d*`, `relay_commit_to_acknowledge_seconds_count [1-9]\d*`)
	both("outbox_backlog_events 0", "outbox_oldest_unsent_seconds 0")
	for n, i := range two {
		if i.shows(`relay_events_published_total [1-9]\d*`) == nil && i.shows(unavailable) == nil {
			t.Errorf("instance %d sent the event and still says that its topic is unavailable", n)
		}
	}
}

func TestErrorKindOfMetric(t *testing.T) {
	t.Parallel()
	refused := &relay.BatchError{Refused: true, Err: kerr.MessageTooLarge}
	for want, errs := range map[string][]error{
		"database": {errors.New("read outbox: connection reset")},
		"broker":   {&relay.BrokerError{Err: context.DeadlineExceeded}},
		"topic":    {&relay.BrokerError{Err: &relay.TopicError{Topic: "t", Err: kerr.UnknownTopicOrPartition}}},
		"refused":  {&relay.BrokerError{Err: refused}, fmt.Errorf("made anew: %w", refused)},
		"fenced":   {relay.ErrFenced, errors.Join(relay.ErrFenced, &relay.BrokerError{Err: context.Canceled})},
	} {
		for _, err := range errs {
			if got := kind(err); got != want {
				t.Errorf("%v is counted as %s, want %s", err, got, want)
			}
		}
	}
}

// TestPartitionChange: topic and numbers are named, and the operator's choice is what happens.
func TestPartitionChange(t *testing.T) {
	t.Parallel()
	db, prefix := testenv.Database(t), testenv.TopicPrefix(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin, topic := kadm.NewClient(client), prefix+"payments"
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	send := func() {
		t.Helper()
		_, err := db.Pool(t, "").Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('payments', 'a', 'payment.completed', '{}')`)
		if err != nil {
			t.Fatal(err)
		}
	}
	relay := func(t *testing.T, choice, says string, lines ...string) {
		t.Helper()
		env := map[string]string{"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": strings.Join(testenv.Brokers(t), ","), "TOPIC_PREFIX": prefix,
			"ADMIN_ADDR": "127.0.0.1:0", "RELAY_PARTITION_CHANGE": choice}
		i := start(t, func(name string) string { return env[name] })
		testenv.Eventually(t, soon, func() error {
			if log := i.log.String(); !strings.Contains(log, says) {
				return fmt.Errorf("log lacks %q:\n%s", says, log)
			}
			return i.shows(lines...)
		})
	}

	// Counted, and the cursor is behind it: the next relay does not send it again.
	sent := []string{`relay_events_published_total [1-9]\d*`, "outbox_backlog_events 0"}

	send()
	t.Run("before", func(t *testing.T) { relay(t, "", "", sent...) })
	if _, err := admin.UpdatePartitions(t.Context(), 4, topic); err != nil {
		t.Fatal(err)
	}

	// Apache Kafka agrees first and makes them afterwards: a relay that starts in between sees one, and sends.
	testenv.Eventually(t, soon, func() error {
		topics, err := admin.ListTopics(t.Context(), topic)
		if n := len(topics[topic].Partitions); err == nil && n != 4 {
			err = fmt.Errorf("%d partitions", n)
		}
		return err
	})

	send()
	named := regexp.QuoteMeta(topic)
	t.Run("refuse", func(t *testing.T) {
		relay(t, "", "topic "+topic+": it has 4 partitions now, its events were sent with 1: see ",
			`relay_topic_partitions_changed\{now="4",sent="1",topic="`+named+`"\} 1`,
			`relay_topic_unavailable\{topic="`+named+`"\} 1`, "outbox_backlog_events 1", "relay_events_published_total 0")
	})
	t.Run("drain", func(t *testing.T) {
		relay(t, "drain", "it has 4 partitions now, its events were sent with 1; they are all acknowledged", sent...)
	})
	send()
	t.Run("refuse from now on", func(t *testing.T) { relay(t, "", "", sent...) })
}

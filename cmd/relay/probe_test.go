package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/testenv"
)

// ready asks /readyz, and fails unless the answer has the status and all of the texts.
func (i *instance) ready(status int, texts ...string) error {
	response, err := http.Get("http://" + i.admin + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != status {
		err = errors.New("another status")
	}
	for _, text := range texts {
		if err == nil && !strings.Contains(string(body), text) {
			err = fmt.Errorf("no %q", text)
		}
	}
	if err != nil {
		return fmt.Errorf("readyz: %d %s: %w", response.StatusCode, body, err)
	}
	return nil
}

// TestProbeNamesTheTopic: both instances try in turn, so at any time one or both fail, and name what they met.
func TestProbeNamesTheTopic(t *testing.T) {
	t.Parallel()
	db, prefix := testenv.Database(t), testenv.TopicPrefix(t)
	env := map[string]string{"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": strings.Join(testenv.Brokers(t), ","), "TOPIC_PREFIX": prefix,
		"ADMIN_ADDR": "127.0.0.1:0", "RELAY_LEASE": "1s"}
	getenv := func(name string) string { return env[name] }
	two := []*instance{start(t, getenv), start(t, getenv)}
	both := func(check func(*instance) error) {
		t.Helper()
		testenv.Eventually(t, soon, func() error { return errors.Join(check(two[0]), check(two[1])) })
	}
	moves := func(i *instance) error { return errors.Join(i.shows("relay_stalled 0"), i.ready(200, "ok")) }
	both(moves)

	if _, err := db.Pool(t, "").Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('nowhere', 'a', 'thing.changed', '{}')`); err != nil {
		t.Fatal(err)
	}
	both(func(i *instance) error { return i.shows("relay_stalled 1") })
	testenv.Eventually(t, soon, func() error {
		first := two[0].ready(503, "stalled: events wait", "topic "+prefix+"nowhere")
		if first != nil && two[1].ready(503, "stalled: events wait", "topic "+prefix+"nowhere") == nil {
			return nil
		}
		return first
	})

	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, nil, prefix+"nowhere"); err != nil {
		t.Fatal(err)
	}
	both(moves)
}

// TestStandbyOfAStalledLeaderIsReady: or a deploy that replaces the leader could not go on. It says what is wrong.
func TestStandbyOfAStalledLeaderIsReady(t *testing.T) {
	t.Parallel()
	db, prefix := testenv.Database(t), testenv.TopicPrefix(t)
	owner := db.Pool(t, "")
	for _, sql := range []string{
		`INSERT INTO outbox_cursors (relay, seen, system_identifier, database_oid, holder, lease_until, moved_at)
		SELECT 'main', pg_current_snapshot(), s.system_identifier, d.oid, 'another one', now() + interval '1 hour', now() - interval '1 hour'
		FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()`,
		`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('payments', 'a', 'thing.changed', '{}')`,
	} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"DATABASE_URL": db.URLAs("relay"), "KAFKA_BROKERS": strings.Join(testenv.Brokers(t), ","), "TOPIC_PREFIX": prefix,
		"ADMIN_ADDR": "127.0.0.1:0", "RELAY_LEASE": "1s"}
	i := start(t, func(name string) string { return env[name] })
	testenv.Eventually(t, soon, func() error {
		return errors.Join(i.shows("relay_stalled 1", "relay_leader 0"), i.ready(200, "ok\nthe leader is stalled: events wait", "another one leads"))
	})

	// A leader that is gone is everybody's business, until one of them leads.
	if _, err := owner.Exec(t.Context(), `UPDATE outbox_cursors SET lease_until = now()`); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error { return errors.Join(i.shows("relay_stalled 0", "relay_leader 1"), i.ready(200)) })
}

package traffic_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/traffic"
)

const relayedEvent = `
INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
VALUES ('payments', 'p', 'payment.completed', '{}')`

const cursorBehindIt = `
INSERT INTO outbox_cursors (relay, last_id, seen, system_identifier, database_oid)
VALUES ('main', 1000, pg_current_snapshot(), 0, 0)`

// TestDrainSaysLostAtOnce is about an event that the relay's cursor has passed and no consumer has.
func TestDrainSaysLostAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		read   int64         // of one record
		within time.Duration // Drain itself waits for a minute
		want   string
	}{
		"the topics are read to their ends": {1, 30 * time.Second, "events lost: of 1 that were relayed only 0"},
		"a record is still to be read":      {0, 6 * time.Second, "not drained"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, brokers, group := testenv.Database(t), testenv.Brokers(t), testenv.TopicPrefix(t)
			owner := db.Pool(t, "postgres")
			for _, sql := range []string{relayedEvent, cursorBehindIt} {
				if _, err := owner.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			readSoFar(t, brokers, group, c.read)
			view, err := traffic.OpenView(t.Context(), db.URL, brokers, group)
			if err != nil {
				t.Fatal(err)
			}
			defer view.Close()

			ctx, cancel := context.WithTimeout(t.Context(), c.within)
			defer cancel()
			err = view.Drain(ctx, func(traffic.Counts) {})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

const hold = `
INSERT INTO payments (id, tenant_id, status, version, amount_minor, currency, source_account, destination_account,
	processed_at, authorization_expires_at, client_id, idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
VALUES (gen_random_uuid(), gen_random_uuid(), 'authorized', 1, 1, 'USD', gen_random_uuid(), gen_random_uuid(),
	now(), now() + $1, gen_random_uuid(), 'k', '', 1, 'POST', '/', 'r')`

// TestDrainWaitsForHolds: the event of an expiry would be counted as lost.
func TestDrainWaitsForHolds(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	owner := db.Pool(t, "postgres")
	if _, err := owner.Exec(t.Context(), hold, time.Hour); err != nil { // nobody can wait for this one
		t.Fatal(err)
	}
	view, err := traffic.OpenView(t.Context(), db.URL, testenv.Brokers(t), "statements")
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if err := view.Drain(t.Context(), func(traffic.Counts) {}); err != nil {
		t.Errorf("with a hold of an hour: %v", err)
	}

	if _, err := owner.Exec(t.Context(), hold, time.Second); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // longer than what is lost is waited for
	defer cancel()
	err = view.Drain(ctx, func(traffic.Counts) {})
	if err == nil || !strings.Contains(err.Error(), "1 holds have not expired") {
		t.Errorf("with a hold of a second: %v", err)
	}
}

// readSoFar makes a topic with one record, and a group that has read so many.
func readSoFar(t *testing.T, brokers []string, group string, read int64) {
	t.Helper()
	topic := group + "payments"
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	record := &kgo.Record{Topic: topic, Value: []byte("{}")}
	if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, read, -1)
	if err := admin.CommitAllOffsets(t.Context(), group, offsets); err != nil {
		t.Fatal(err)
	}
}

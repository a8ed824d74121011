package testenv_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

func TestDatabaseHasSchemaAndPartitions(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "")
	if err := migrations.Check(t.Context(), pool); err != nil {
		t.Error(err)
	}
	for _, parent := range []string{"idempotency_keys", "outbox_events"} {
		var days int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM generate_series(0, 7) i
			WHERE to_regclass($1 || to_char((now() AT TIME ZONE 'utc')::date + i, '_YYYYMMDD')) IS NOT NULL`, parent).Scan(&days)
		if err != nil || days != 8 {
			t.Errorf("%s: partitions for %d of 8 days, %v", parent, days, err)
		}
	}
}

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	one, other := testenv.Database(t), testenv.Database(t)
	if _, err := one.Pool(t, "").Exec(t.Context(), `CREATE TABLE mine AS SELECT 1`); err != nil {
		t.Fatal(err)
	}
	var seen bool
	if err := other.Pool(t, "").QueryRow(t.Context(), `SELECT to_regclass('mine') IS NOT NULL`).Scan(&seen); err != nil {
		t.Fatal(err)
	}
	if seen {
		t.Error("the other database has the table")
	}
}

func TestDatabasesAreDroppedWithOpenConnections(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var urls []string
	t.Run("parallel", func(t *testing.T) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				db := testenv.Database(t)
				conn, err := pgx.Connect(context.Background(), db.URL) // never closed
				if err != nil {
					t.Error(err)
					return
				}
				if err := conn.Ping(context.Background()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				urls = append(urls, db.URL)
			})
		}
		all.Wait()
	})
	if len(urls) != 8 {
		t.Fatalf("%d databases, want 8", len(urls))
	}
	for _, url := range urls {
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			conn.Close(t.Context())
			t.Errorf("%s is still there", url)
		}
	}
}

func TestEveryRoleLogsIn(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	for _, role := range []string{"api_write", "api_read", "relay", "consumer"} {
		var user string
		if err := db.Pool(t, role).QueryRow(t.Context(), "SELECT current_user").Scan(&user); err != nil || user != role {
			t.Errorf("as %s: %q, %v", role, user, err)
		}
	}
}

func TestTopicPrefixSeparatesTests(t *testing.T) {
	t.Parallel()
	topic := testenv.TopicPrefix(t) + "payments"
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...), kgo.DefaultProduceTopic(topic), kgo.ConsumeTopics(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), kgo.StringRecord("mine")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var got []string
	client.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	if diff := cmp.Diff([]string{"mine"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestEventuallyWaitsForTheCondition(t *testing.T) {
	t.Parallel()
	calls := 0
	testenv.Eventually(t, time.Minute, func() error {
		if calls++; calls < 3 {
			return fmt.Errorf("call %d", calls)
		}
		return nil
	})
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
}

func TestUnavailableServersAreNamedInTheError(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for name, env := range map[string]map[string]string{
		"unknown kind":      {"TEST_SERVERS": "podman"},
		"nothing listening": {"TEST_DATABASE_URL": "postgres://127.0.0.1:1/postgres", "TEST_KAFKA_BROKERS": "127.0.0.1:1"},
	} {
		getenv := func(key string) string { return env[key] }
		if s, err := testenv.StartPostgres(ctx, getenv); err == nil {
			t.Errorf("%s: started %s", name, s.Name)
		}
		if s, err := testenv.StartBroker(ctx, getenv); err == nil {
			t.Errorf("%s: started %s", name, s.Name)
		}
	}
}

func BenchmarkDatabase(b *testing.B) {
	for b.Loop() {
		testenv.Database(b)
	}
}

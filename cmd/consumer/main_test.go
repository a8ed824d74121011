package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/testenv"
)

func env(pairs ...string) func(string) string {
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return values[name] }
}

// shell runs the program as a shell would.
func shell(getenv func(string) string, args ...string) (stdout, stderr string, code int) {
	var out, problems bytes.Buffer
	code = program.Main(consumer, args, getenv, &out, &problems)
	return out.String(), problems.String(), code
}

func TestStartNamesEachFault(t *testing.T) {
	t.Parallel()
	ahead := testenv.Database(t)
	if _, err := ahead.Pool(t, "").Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`); err != nil {
		t.Fatal(err)
	}
	good, brokers := testenv.Database(t).URLAs("consumer"), strings.Join(testenv.Brokers(t), ",")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	for name, c := range map[string]struct {
		env   func(string) string
		lines []string
	}{
		"nothing set":    {env(), []string{"DATABASE_URL is not set", "KAFKA_BROKERS is not set"}},
		"nobody there":   {env("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/x", "KAFKA_BROKERS", "127.0.0.1:1"), []string{"open the database: ", "reach Kafka at 127.0.0.1:1: "}},
		"schema too new": {env("DATABASE_URL", ahead.URLAs("consumer"), "KAFKA_BROKERS", brokers), []string{"schema out of step: the database is at version 9999"}},
		"address in use": {env("DATABASE_URL", good, "KAFKA_BROKERS", brokers, "ADMIN_ADDR", taken.Addr().String()), []string{"open the admin listener (ADMIN_ADDR): "}},
		"pprof in use":   {env("DATABASE_URL", good, "KAFKA_BROKERS", brokers, "ADMIN_ADDR", "127.0.0.1:0", "PPROF_ADDR", taken.Addr().String()), []string{"open the profiling listener (PPROF_ADDR): "}},
		"wrong port":     {env("DATABASE_URL", good, "KAFKA_BROKERS", brokers, "ADMIN_ADDR", "9092"), []string{"ADMIN_ADDR must be"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			stdout, stderr, code := shell(c.env)
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("took %s", took)
			}
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if code != 1 || stdout != "" || len(lines) != len(c.lines) || strings.Contains(stderr, "hunter2") {
				t.Fatalf("exit %d, stdout %q, stderr:\n%s", code, stdout, stderr)
			}
			for i, want := range c.lines {
				if !strings.HasPrefix(lines[i], "consumer: "+want) {
					t.Errorf("line %q, want consumer: %s…", lines[i], want)
				}
			}
		})
	}
}

func TestHelpShowsExamplesAndVariables(t *testing.T) {
	t.Parallel()
	stdout, stderr, code := shell(env(), "-h")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "Example") || !strings.Contains(stdout, "CONSUMER_GROUP") || !strings.Contains(stdout, "consumer health") {
		t.Errorf("exit %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
}

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

func TestPaymentsReachTheStatements(t *testing.T) {
	t.Parallel()
	db, prefix := testenv.Database(t), testenv.TopicPrefix(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	admin, err := process.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	getenv := env("DATABASE_URL", db.URLAs("consumer"), "KAFKA_BROKERS", strings.Join(testenv.Brokers(t), ","), "TOPIC_PREFIX", prefix,
		"CONSUMER_GROUP", prefix+"statements", "ADMIN_ADDR", admin)
	var log buffer
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, getenv, &log) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if !strings.Contains(log.String(), `"msg":"consumer stopped"`) || t.Failed() {
			t.Errorf("log:\n%s", log.String())
		}
	}()

	// Its topics are not there yet, so it is not ready, and says why.
	testenv.Eventually(t, time.Minute, func() error {
		_, stderr, code := shell(getenv, "health")
		if code != 1 || !strings.Contains(stderr, "do not exist: "+prefix+"payments, "+prefix+"accounts") {
			return fmt.Errorf("health: exit %d, %s", code, stderr)
		}
		return nil
	})
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 3, 1, nil, prefix+"payments", prefix+"accounts"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() error {
		if _, stderr, code := shell(getenv, "health"); code != 0 {
			return fmt.Errorf("health: exit %d, %s", code, stderr)
		}
		return nil
	})

	payment, source, destination := uuid.New(), uuid.New(), uuid.New()
	headers := []kgo.RecordHeader{
		{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(uuid.NewString())}, {Key: "ce_source", Value: []byte("/oncepay")},
		{Key: "ce_type", Value: []byte("payment.completed")}, {Key: "ce_subject", Value: []byte(payment.String())},
		{Key: "ce_time", Value: []byte(time.Now().UTC().Format(time.RFC3339Nano))},
		{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
	}
	value := fmt.Sprintf(`{"id":%q,"status":"completed","amount_minor":2500,"currency":"USD","source_account":%q,"destination_account":%q,"processed_at":"2026-03-01T10:00:00Z"}`,
		payment, source, destination)
	record := &kgo.Record{Topic: prefix + "payments", Key: []byte(payment.String()), Value: []byte(value), Headers: headers}
	again := *record
	if err := client.ProduceSync(t.Context(), record, &again).FirstErr(); err != nil {
		t.Fatal(err)
	}
	owner := db.Pool(t, "")
	testenv.Eventually(t, time.Minute, func() error {
		var debits, credits int64
		err := owner.QueryRow(t.Context(), `SELECT coalesce(sum(debits_minor), 0), coalesce(sum(credits_minor), 0) FROM statements`).Scan(&debits, &credits)
		if err == nil && (debits != 2500 || credits != 2500) {
			err = fmt.Errorf("debits %d, credits %d", debits, credits)
		}
		return err
	})
}

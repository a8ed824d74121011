package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/internal/testenv"
)

// TestMinimal builds the example, runs it and sends one order three times: there is one event.
func TestMinimal(t *testing.T) {
	t.Parallel()
	db := testenv.EmptyDatabase(t)
	migrate(t, db.URL)
	topic := testenv.TopicPrefix(t)
	address := start(t, "DATABASE_URL="+db.URL, "KAFKA_BROKERS="+strings.Join(testenv.Brokers(t), ","),
		"TOPIC_PREFIX="+topic)

	first, replayed := order(t, address, "order-1", "book")
	if replayed {
		t.Error("the first answer says that it is a replay")
	}
	again, replayed := order(t, address, "order-1", "book")
	if again != first || !replayed {
		t.Errorf("the repeat got %q, replayed %t; want %q", again, replayed, first)
	}
	if out := readmesRepeat(t, address); out != first {
		t.Errorf("the README's curl got %q, want %q", out, first)
	}

	// Once the cursor is behind everything, the topic has all that will ever be sent.
	pool := db.Pool(t, "")
	testenv.Eventually(t, 30*time.Second, func() error {
		var waiting int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox_events
			WHERE id > coalesce((SELECT last_id FROM outbox_cursors WHERE relay = 'main'), 0)`).Scan(&waiting)
		if err == nil && waiting > 0 {
			err = fmt.Errorf("%d events are not sent", waiting)
		}
		return err
	})
	if events := consume(t, topic+"orders"); !slices.Equal(events, []string{first}) {
		t.Errorf("the topic has %q, want the order once: %q", events, first)
	}
}

// migrate applies what README.md names, with the way down left out.
func migrate(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, file := range []string{
		"../../migrations/00002_idempotency.sql", "../../migrations/00003_outbox.sql", "orders.sql",
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		up, _, _ := strings.Cut(string(b), "-- +goose Down")
		if _, err := conn.Exec(t.Context(), up); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
}

// start runs the example until the test ends, and returns its address. It must end by itself after
// SIGTERM.
func start(t *testing.T, env ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "minimal")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	address, err := process.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}

	var log strings.Builder
	cmd := exec.Command(binary)
	cmd.Env = append(env, "HTTP_ADDR="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // if it has ended, Wait says how
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("minimal ended with %v:\n%s", err, log.String())
		}
	})
	testenv.Eventually(t, 30*time.Second, func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return address
}

func order(t *testing.T, address, key, item string) (body string, replayed bool) {
	t.Helper()
	form := strings.NewReader(url.Values{"item": {item}}.Encode())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/orders", form)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusCreated || !strings.Contains(string(b), item) {
		t.Fatalf("%d %s %v", response.StatusCode, b, err)
	}
	return string(b), response.Header.Get("Idempotent-Replayed") == "true"
}

// readmesRepeat runs the curl line of README.md, which is order-1 again, and returns what it prints.
func readmesRepeat(t *testing.T, address string) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(readme), "\n    curl -d item=book")
	line, _, _ = strings.Cut(line, "\n")
	if !found {
		t.Fatal("README.md does not send an order")
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "curl -s -d item=book"+line)
	cmd.Env = append(os.Environ(), "HTTP_ADDR="+address)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("curl%s: %v", line, err)
	}
	return string(out)
}

// consume returns what a topic has.
func consume(t *testing.T, topic string) (values []string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(t)...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	ends.Each(func(end kadm.ListedOffset) { want += int(end.Offset) })
	for len(values) < want {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read %q of %d records", values, want)
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

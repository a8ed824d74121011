package main_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// servers builds the command once and runs it with an environment in which no servers are named.
func servers(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "servers")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "TEST_DATABASE_URL=", "TEST_KAFKA_BROKERS=", "TEST_SERVERS=")
	return cmd
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit == nil {
		return 0
	}
	return exit.ExitCode()
}

func TestCommandGetsServersAndPassesOnItsExitCode(t *testing.T) {
	t.Parallel()
	cmd := servers(t, "--", "sh", "-c", `echo "found $TEST_DATABASE_URL $TEST_KAFKA_BROKERS"; read -r _; exit 7`)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	url, brokers, done := start(t, cmd)

	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	var data string
	if err := conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}

	stdin.Close()
	if code := exitCode(t, done()); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	gone(t, url, data)
}

func TestSignalReachesCommandAndServersAreRemoved(t *testing.T) {
	t.Parallel()
	cmd := servers(t, "--", "sh", "-c", `trap 'exit 9' TERM; echo "found $TEST_DATABASE_URL $TEST_KAFKA_BROKERS"; read -r _`)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	url, _, done := start(t, cmd)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	var data string
	if err := conn.QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, done()); code != 9 {
		t.Errorf("exit code %d, want 9", code)
	}
	gone(t, url, data)
}

func TestWrongArgumentsAreOneLine(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no command":      {},
		"unknown flag":    {"-podman", "--", "true"},
		"unknown program": {"--", "no-such-program"},
	} {
		cmd := servers(t, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if code := exitCode(t, cmd.Run()); code != 1 {
			t.Errorf("%s: exit code %d, want 1", name, code)
		}
		if lines := strings.Count(stderr.String(), "\n"); lines != 1 {
			t.Errorf("%s: %d lines on stderr: %s", name, lines, &stderr)
		}
	}
}

// start returns the addresses that the command printed, and how to wait for the end.
func start(t *testing.T, cmd *exec.Cmd) (url, brokers string, done func() error) {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // fails when it has ended, as it should have
	var text strings.Builder
	for buf := make([]byte, 1024); ; {
		n, err := out.Read(buf)
		text.Write(buf[:n])
		if _, found, ok := strings.Cut(text.String(), "found "); ok && strings.HasSuffix(found, "\n") {
			words := strings.Fields(found)
			return words[0], words[1], cmd.Wait
		}
		if err != nil {
			t.Fatalf("read %q: %v", text.String(), err)
		}
	}
}

func gone(t *testing.T, url, data string) {
	t.Helper()
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		conn.Close(context.Background())
		t.Error("Postgres is still there")
	}
	if _, err := os.Stat(filepath.Dir(data)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", filepath.Dir(data), err)
	}
}

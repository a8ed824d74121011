package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/embedded"
)

func startPostgres(t *testing.T, o embedded.PostgresOptions) *embedded.Postgres {
	t.Helper()
	p, err := embedded.StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	t.Logf("Postgres %s, %s", p.Version(), p.Origin())
	return p
}

func value(t *testing.T, url, query string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var s string
	if err := conn.QueryRow(t.Context(), query).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

// persistentDir is not t.TempDir: as root that is a directory which nobody cannot enter.
func persistentDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "embedded-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestInstalledPostgresIsDurableAndLeavesNothing(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, embedded.PostgresOptions{Settings: map[string]string{"max_connections": "20"}})
	url := p.URL("postgres", "postgres")
	for setting, want := range map[string]string{"fsync": "on", "synchronous_commit": "on", "listen_addresses": "127.0.0.1", "max_connections": "20"} {
		if got := value(t, url, "SHOW "+setting); got != want {
			t.Errorf("%s = %s, want %s", setting, got, want)
		}
	}
	dir := filepath.Dir(value(t, url, "SHOW data_directory"))
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 && info.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Error("root's server has a directory of root's: it runs as root")
	}
	if !running(p.Pid()) {
		t.Errorf("no process %d", p.Pid())
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(t, dir) {
		t.Errorf("%s is still there", dir)
	}
	if running(p.Pid()) {
		t.Errorf("process %d is still there", p.Pid())
	}
}

func TestDownloadedPostgresRuns(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, embedded.PostgresOptions{Download: true})
	if !strings.HasPrefix(p.Version(), "17.") || !strings.Contains(p.Origin(), "Maven Central") {
		t.Errorf("version %s, origin %s", p.Version(), p.Origin())
	}
	if err := embedded.CreateRoles(t.Context(), p.URL("postgres", "postgres")); err != nil {
		t.Fatal(err)
	}
	if got := value(t, p.URL("relay", "postgres"), "SELECT current_user"); got != "relay" {
		t.Errorf("logged in as %s", got)
	}
}

func TestDataInAGivenDirectorySurvivesACrash(t *testing.T) {
	t.Parallel()
	dir := persistentDir(t)
	first := startPostgres(t, embedded.PostgresOptions{Dir: dir})
	conn, err := pgx.Connect(t.Context(), first.URL("postgres", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `CREATE TABLE kept AS SELECT 'here' AS word`); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := startPostgres(t, embedded.PostgresOptions{Dir: dir})
	if got := value(t, second.URL("postgres", "postgres"), "SELECT word FROM kept"); got != "here" {
		t.Errorf("read %q", got)
	}
}

func TestPortInUseIsNamedInTheError(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	_, err = embedded.StartPostgres(t.Context(), embedded.PostgresOptions{Settings: map[string]string{"port": port}})
	if err == nil || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("error %v", err)
	}
}

// A process of its own starts a server and is killed: what it started must go by itself.
func TestServerEndsWithItsKilledOwner(t *testing.T) {
	t.Parallel()
	owner := exec.Command(os.Args[0], "-test.run=^TestOwnerThatIsKilled$")
	owner.Env = append(os.Environ(), "EMBEDDED_TEST_OWNER=1")
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	if _, err := fmt.Fscanf(out, "owner %d %s\n", &pid, &dir); err != nil {
		t.Fatal(err)
	}
	if !running(pid) || !exists(t, dir) {
		t.Errorf("server %d and its %s are not there", pid, dir)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // "signal: killed"
	deadline := time.After(20 * time.Second)
	for tick := time.Tick(5 * time.Millisecond); running(pid) || exists(t, dir); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("server %d running: %t, %s there: %t", pid, running(pid), dir, exists(t, dir))
		}
	}
}

// TestOwnerThatIsKilled is the other process of the test above; without its variable it has nothing to show.
func TestOwnerThatIsKilled(t *testing.T) {
	if os.Getenv("EMBEDDED_TEST_OWNER") == "" {
		return
	}
	p := startPostgres(t, embedded.PostgresOptions{})
	fmt.Printf("owner %d %s\n", p.Pid(), filepath.Dir(value(t, p.URL("postgres", "postgres"), "SHOW data_directory")))
	<-t.Context().Done()
}

func TestCreateRolesConcurrently(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, embedded.PostgresOptions{})
	url := p.URL("postgres", "postgres")
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "CREATE ROLE consumer NOLOGIN"); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error)
	for range 10 {
		go func() { errs <- embedded.CreateRoles(context.Background(), url) }()
	}
	for range 10 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, role := range []string{"api_write", "api_read", "relay", "consumer"} {
		if got := value(t, p.URL(role, "postgres"), "SELECT current_user"); got != role {
			t.Errorf("logged in as %s", got)
		}
	}
}

func TestCatch(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]bool{"carried out": false, "dropped": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, err := embedded.StartKafka()
			if err != nil {
				t.Fatal(err)
			}
			defer k.Stop()
			client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.ConsumeTopics("caught"),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, nil, "caught", "other"); err != nil {
				t.Fatal(err)
			}

			caught := 0
			k.Catch(kmsg.Produce, "caught", func() bool { caught++; return drop })
			send := func(topic, text string) {
				t.Helper()
				// The client sends a dropped record again.
				r := &kgo.Record{Topic: topic, Value: []byte(text)}
				if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			send("other", "")
			if caught != 0 {
				t.Error("caught a record of another topic")
			}
			send("caught", "first")
			send("caught", "second")

			var read []string
			for len(read) < 2 {
				fetches := client.PollFetches(t.Context())
				if err := fetches.Err(); err != nil {
					t.Fatal(err)
				}
				fetches.EachRecord(func(r *kgo.Record) { read = append(read, string(r.Value)) })
			}
			if want := []string{"first", "second"}; caught != 1 || !slices.Equal(read, want) {
				t.Errorf("caught %d, read %q, want one and %q", caught, read, want)
			}
		})
	}
}

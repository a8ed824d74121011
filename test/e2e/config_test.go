package e2e

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/testenv"
)

// TestWrongConfigurationEndsAProgramWithOneClearLinePerProblem: within five seconds and with exit code 1.
func TestWrongConfigurationEndsAProgramWithOneClearLinePerProblem(t *testing.T) {
	t.Parallel()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	good := testenv.Database(t)
	empty := testenv.EmptyDatabase(t)
	newer := testenv.Database(t)
	if _, err := newer.Pool(t, "").Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, true)`); err != nil {
		t.Fatal(err)
	}
	brokers := strings.Join(testenv.Brokers(t), ",")
	silent := silentListener(t)

	role := map[string]string{"api": "api_write", "relay": "relay", "consumer": "consumer", "worker": "worker"}
	all := []string{"api", "relay", "consumer", "worker"}
	kafka := []string{"relay", "consumer"}
	for _, c := range []struct {
		name     string
		programs []string
		database func(role string) string
		brokers  string
		more     []string
		want     []string // one per line that is expected, in any order
	}{
		{"nothing is set", []string{"api", "worker"}, nil, "", nil, []string{"DATABASE_URL is not set"}},
		{"nothing is set", kafka, nil, "", nil, []string{"DATABASE_URL is not set", "KAFKA_BROKERS is not set"}},
		{"bad URL", all, func(string) string { return "mysql://somewhere" }, brokers, nil, []string{"DATABASE_URL must be"}},
		{"two variables are wrong", all, good.URLAs, brokers, []string{"LOG_LEVEL=loud", "LOG_FORMAT=xml"}, []string{"LOG_LEVEL must be", "LOG_FORMAT must be"}},
		{"nobody listens at the database's address", all, func(string) string { return "postgres://u:hunter2@127.0.0.1:1/oncepay" }, brokers, nil, []string{"open the database"}},
		{"the database does not answer", all, func(string) string { return "postgres://u:hunter2@" + silent + "/oncepay" }, brokers, nil, []string{"open the database"}},
		{"the password is wrong or the role unknown", all, func(string) string {
			return strings.Replace(good.URLAs("nobody-knows-me"), "nobody-knows-me:nobody-knows-me", "nobody-knows-me:hunter2", 1)
		}, brokers, nil, []string{"open the database"}},
		{"nobody listens at the broker's address", kafka, good.URLAs, "127.0.0.1:1", nil, []string{"reach Kafka"}},
		{"the broker does not answer", kafka, good.URLAs, silent, nil, []string{"reach Kafka"}},
		{"neither database nor broker is there", kafka, func(string) string { return "postgres://u:hunter2@127.0.0.1:1/oncepay" }, "127.0.0.1:1", nil, []string{"open the database", "reach Kafka"}},
		{"the schema is missing", all, empty.URLAs, brokers, nil, []string{"migrate up"}},
		{"the schema is too new", all, newer.URLAs, brokers, nil, []string{"deploy a newer program"}},
		{"the private listener's address is taken", all, good.URLAs, brokers, []string{"ADMIN_ADDR=" + silent, "DATABASE_READ_URL=" + good.URLAs("api_read")}, []string{"ADMIN_ADDR"}},
		{"the reader sees every tenant", []string{"api"}, good.URLAs, brokers, nil, []string{"ROW_LEVEL_SECURITY"}},
	} {
		for _, program := range c.programs {
			t.Run(program+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				env := append([]string{"HTTP_ADDR=127.0.0.1:0", "ADMIN_ADDR=127.0.0.1:0", "KAFKA_BROKERS=" + c.brokers, "WORKER_PARTS=expiry"}, c.more...)
				if c.database != nil {
					env = append(env, "DATABASE_URL="+c.database(role[program]))
				}
				lines, code, took := runToEnd(t, filepath.Join(dir, program), env)
				if code != 1 || took > 15*time.Second {
					t.Errorf("exit code %d after %s", code, took)
				}
				if len(lines) != len(c.want) {
					t.Errorf("%d lines, want %d", len(lines), len(c.want))
				}
				for _, want := range c.want {
					if !strings.Contains(strings.Join(lines, "\n"), want) {
						t.Errorf("nothing says %q", want)
					}
				}
				if strings.Contains(strings.Join(lines, "\n"), "hunter2") {
					t.Error("the password is shown")
				}
				if t.Failed() {
					t.Logf("it said:\n%s", strings.Join(lines, "\n"))
				}
			})
		}
	}
}

func TestEveryProgramExplainsItself(t *testing.T) {
	t.Parallel()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"api", "relay", "consumer", "worker", "migrate", "oncepay"} {
		out, err := exec.Command(filepath.Join(dir, program), "-h").Output()
		for _, want := range []string{"Usage", "Example", "DATABASE_URL"} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s -h: %v, lacks %s:\n%s", program, err, want, out)
			}
		}
		lines, code, _ := runToEnd(t, filepath.Join(dir, program), nil, "-colour")
		if code != 1 || len(lines) != 1 || !strings.Contains(lines[0], "colour") {
			t.Errorf("%s -colour: exit code %d, %q", program, code, lines)
		}
	}
}

// runToEnd returns what a program said, its exit code and how long it took.
func runToEnd(t *testing.T, path string, env []string, args ...string) (lines []string, code int, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	start := time.Now()
	_ = cmd.Run() // the exit code says it
	return strings.Split(strings.TrimSpace(stderr.String()), "\n"), cmd.ProcessState.ExitCode(), time.Since(start)
}

// silentListener accepts connections and says nothing.
func silentListener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

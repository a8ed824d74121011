package e2e

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/testenv"
)

// operatorsLines returns the commands that docs/operating.md has for a broker with ACLs.
func operatorsLines(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## A topic is missing or forbidden\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var lines strings.Builder
	for line := range strings.Lines(section) {
		if command, is := strings.CutPrefix(line, "    "); is {
			lines.WriteString(command)
		}
	}
	return lines.String()
}

// TestLogInToKafka: with no more rights than docs/operating.md gives, over TLS.
func TestLogInToKafka(t *testing.T) {
	t.Parallel()
	kafka := testenv.StartSecureKafka(t, []string{"relay", "consumer"}, operatorsLines(t))
	deliveries := []string{"at-least-once", "exactly-once", "at-least-once"}
	for i, mechanism := range testenv.Mechanisms {
		t.Run(mechanism, func(t *testing.T) {
			c := newChainWith(t, func(c *chain) {
				c.relayEnv = append(kafka.Env(t, mechanism, "relay"), "TOPIC_PREFIX=oncepay.", "RELAY_DELIVERY="+deliveries[i])
				c.consumerEnv = append(kafka.Env(t, mechanism, "consumer"), "TOPIC_PREFIX=oncepay.", "CONSUMER_GROUP=statements")
			})
			paid, err := c.pay(t.Context(), "order-1", 2500)
			if err != nil || paid.status != http.StatusCreated {
				t.Fatalf("%v %+v", err, paid)
			}
			c.statementsMatchTheLedger()
		})
	}

	t.Run("wrong password", func(t *testing.T) {
		db := testenv.Database(t)
		for _, name := range []string{"relay", "consumer"} {
			env := append(kafka.Env(t, "SCRAM-SHA-512", name), "DATABASE_URL="+db.URLAs(name), "ADMIN_ADDR=127.0.0.1:0")
			file := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(file, []byte("hunter2"), 0o600); err != nil {
				t.Fatal(err)
			}
			built, err := programs()
			if err != nil {
				t.Fatal(err)
			}
			program := exec.CommandContext(t.Context(), filepath.Join(built, name))
			program.Env = append(env, "KAFKA_PASSWORD_FILE="+file)
			out, err := program.CombinedOutput()
			why := "SASL_AUTHENTICATION_FAILED"
			if os.Getenv("TEST_SERVERS") != "docker" {
				why = "EOF" // of kfake
			}
			if err == nil || !bytes.Contains(out, []byte(name+": reach Kafka at "+kafka.Brokers+": "+why)) ||
				bytes.Contains(out, []byte("hunter2")) {
				t.Errorf("%s: %v %s", name, err, out)
			}
		}
	})
}

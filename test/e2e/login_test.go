package e2e

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

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
	// A backslash continues a line, as in a shell.
	return strings.ReplaceAll(lines.String(), "\\\n", " ")
}

// run does what an operator's command line would do.
func run(ctx context.Context, admin *kadm.Client, line []string) error {
	// A flag may be repeated, as --operation is.
	flags := map[string][]string{}
	for i := 0; i+1 < len(line); i++ {
		if name, is := strings.CutPrefix(line[i], "--"); is {
			flags[name] = append(flags[name], line[i+1])
		}
	}

	switch {
	case len(line) == 0:
		return nil
	case line[0] == "kafka-topics.sh":
		partitions, err := strconv.Atoi(flags["partitions"][0])
		if err == nil {
			_, err = admin.CreateTopic(ctx, int32(partitions), 1, nil, flags["topic"][0])
		}
		return err
	case line[0] == "kafka-acls.sh":
		var operations []kadm.ACLOperation
		for _, name := range flags["operation"] {
			operation, err := kmsg.ParseACLOperation(name)
			if err != nil {
				return err
			}
			operations = append(operations, operation)
		}

		pattern := kadm.ACLPatternLiteral
		if slices.Contains(flags["resource-pattern-type"], "prefixed") {
			pattern = kadm.ACLPatternPrefixed
		}
		acls := kadm.NewACLs().Allow(flags["allow-principal"]...).AllowHosts("*").
			ResourcePatternType(pattern).Operations(operations...).
			MaybeTopics(flags["topic"]...).MaybeGroups(flags["group"]...).
			MaybeTransactionalIDs(flags["transactional-id"]...)

		made, err := admin.CreateACLs(ctx, acls)
		for _, one := range made {
			err = errors.Join(err, one.Err)
		}
		return err
	}
	return errors.New("unknown")
}

// TestLogInToKafka: with no more rights than docs/operating.md gives, over TLS.
func TestLogInToKafka(t *testing.T) {
	t.Parallel()
	kafka, admin := testenv.StartSecureKafka(t, "relay", "consumer")
	for line := range strings.Lines(operatorsLines(t)) {
		if err := run(t.Context(), kadm.NewClient(admin), strings.Fields(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}

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
			c.number(1, `SELECT count(*) FROM inbox_consumers WHERE keep_days IS NOT NULL`) // it may ask how long topics keep
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

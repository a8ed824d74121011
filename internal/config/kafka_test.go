package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/kafkalogin"
)

func TestKafkaLogin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	password, empty := filepath.Join(dir, "password"), filepath.Join(dir, "empty")
	for file, text := range map[string]string{password: "hunter2\n", empty: "\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const (
		half   = "KAFKA_SASL_MECHANISM needs KAFKA_USERNAME and KAFKA_PASSWORD_FILE"
		few    = "TOPIC_MIN_INSYNC needs TOPIC_REPLICATION of at least as many: a topic with fewer replicas takes no event"
		secret = "KAFKA_PASSWORD_FILE must be a readable file that is not empty, for example KAFKA_PASSWORD_FILE=/run/secrets/kafka"
	)
	for name, c := range map[string]struct {
		env  string
		want string // the whole error
	}{
		"nothing":               {"", ""},
		"TLS alone":             {"KAFKA_TLS=on", ""},
		"all":                   {"KAFKA_TLS=on KAFKA_SASL_MECHANISM=PLAIN KAFKA_USERNAME=relay KAFKA_PASSWORD_FILE=" + password, ""},
		"SCRAM without TLS":     {"KAFKA_SASL_MECHANISM=SCRAM-SHA-256 KAFKA_USERNAME=relay KAFKA_PASSWORD_FILE=" + password, ""},
		"no user":               {"KAFKA_SASL_MECHANISM=SCRAM-SHA-512 KAFKA_PASSWORD_FILE=" + password, half},
		"no password":           {"KAFKA_SASL_MECHANISM=SCRAM-SHA-512 KAFKA_USERNAME=relay", half},
		"no mechanism":          {"KAFKA_USERNAME=relay", "KAFKA_USERNAME and KAFKA_PASSWORD_FILE need KAFKA_SASL_MECHANISM"},
		"PLAIN without TLS":     {"KAFKA_SASL_MECHANISM=PLAIN KAFKA_USERNAME=relay KAFKA_PASSWORD_FILE=" + password, "KAFKA_SASL_MECHANISM=PLAIN needs KAFKA_TLS=on: it sends the password in plain text"},
		"file that is missing":  {"KAFKA_PASSWORD_FILE=" + dir + "/none", secret},
		"file that is empty":    {"KAFKA_PASSWORD_FILE=" + empty, secret},
		"authorities, no TLS":   {"KAFKA_CA_FILE=" + password, "KAFKA_CA_FILE must be a readable file of certificates in PEM, for example KAFKA_CA_FILE=/etc/kafka/ca.pem"},
		"an unknown mechanism":  {"KAFKA_SASL_MECHANISM=GSSAPI", "KAFKA_SASL_MECHANISM must be PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512, for example KAFKA_SASL_MECHANISM=SCRAM-SHA-512"},
		"an unknown codec":      {"RELAY_COMPRESSION=brotli", "RELAY_COMPRESSION must be none or gzip or snappy or lz4 or zstd, for example RELAY_COMPRESSION=snappy"},
		"topics for production": {"TOPIC_PARTITIONS=24 TOPIC_REPLICATION=3 TOPIC_MIN_INSYNC=2", ""},
		"replicas alone":        {"TOPIC_REPLICATION=3", ""},
		"one copy":              {"TOPIC_MIN_INSYNC=1", ""},
		"all replicas in sync":  {"TOPIC_REPLICATION=2 TOPIC_MIN_INSYNC=2", ""},
		"too few replicas":      {"TOPIC_REPLICATION=1 TOPIC_MIN_INSYNC=2", few},
		"unknown replicas":      {"TOPIC_MIN_INSYNC=2", few},
		"no replica":            {"TOPIC_REPLICATION=0", "TOPIC_REPLICATION must be a whole number from 1 to 100, for example TOPIC_REPLICATION=3"},
		"too few, and no login": {"TOPIC_REPLICATION=1 TOPIC_MIN_INSYNC=2 KAFKA_SASL_MECHANISM=SCRAM-SHA-512", half + "\n" + few},
		"an illegal relay name": {"RELAY_NAME=a/b", "RELAY_NAME must be up to 30 letters, digits, dots, hyphens and underscores, for example RELAY_NAME=main"},
	} {
		pairs := []string{"DATABASE_URL", url, "KAFKA_BROKERS", "kafka:9092"}
		for _, pair := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(pair, "=")
			pairs = append(pairs, name, value)
		}
		cfg, err := config.LoadRelay(env(pairs...))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if err != nil {
			continue
		}
		if _, err := kafkalogin.Options(cfg.Kafka); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package config_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/config"
)

const url = "postgres://relay:secret@localhost:5432/oncepay"

func env(pairs ...string) func(string) string {
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return values[name] }
}

func TestDefaults(t *testing.T) {
	t.Parallel()

	api, err := config.LoadAPI(env("DATABASE_URL", url))
	if err != nil {
		t.Fatal(err)
	}
	wantAPI := config.API{
		DatabaseURL: url, DatabaseReadURL: url, DatabasePool: 16, RowSecurity: "required", HTTPAddr: ":8080", AdminAddr: "127.0.0.1:9090",
		Committers: 2, BatchMax: 100, TenantMax: 300, AuthorizationMin: time.Minute,
		IdempotencyRetention: 72 * time.Hour, Log: config.Log{LogLevel: slog.LevelInfo, LogFormat: "json"},
	}
	if diff := cmp.Diff(wantAPI, api); diff != "" {
		t.Errorf("api (-want +got):\n%s", diff)
	}

	relay, err := config.LoadRelay(env("DATABASE_URL", url, "KAFKA_BROKERS", "a:9092, b:9092"))
	if err != nil {
		t.Fatal(err)
	}
	wantRelay := config.Relay{
		DatabaseURL: url, Kafka: config.Kafka{Brokers: []string{"a:9092", "b:9092"}, TopicPrefix: "oncepay.", TLS: "off"},
		Name: "main", Delivery: "at-least-once", Compression: "snappy", PartitionChange: "refuse", TopicPartitions: 12, Lease: 3 * time.Second, Batch: 2500, OutboxRetention: 7 * 24 * time.Hour,
		AdminAddr: "127.0.0.1:9091", Log: config.Log{LogLevel: slog.LevelInfo, LogFormat: "json"},
	}
	if diff := cmp.Diff(wantRelay, relay); diff != "" {
		t.Errorf("relay (-want +got):\n%s", diff)
	}

	consumer, err := config.LoadConsumer(env("DATABASE_URL", url, "KAFKA_BROKERS", "[::1]:9092"))
	if err != nil {
		t.Fatal(err)
	}
	wantConsumer := config.Consumer{
		DatabaseURL: url, Kafka: config.Kafka{Brokers: []string{"[::1]:9092"}, TopicPrefix: "oncepay.", TLS: "off"},
		Group: "statements", InboxRetention: 30 * 24 * time.Hour, AdminAddr: "127.0.0.1:9092", Log: config.Log{LogLevel: slog.LevelInfo, LogFormat: "json"},
	}
	if diff := cmp.Diff(wantConsumer, consumer); diff != "" {
		t.Errorf("consumer (-want +got):\n%s", diff)
	}

	worker, err := config.LoadWorker(env("DATABASE_URL", url, "KAFKA_BROKERS", "a:9092", "PSP_URL", "http://127.0.0.1:8090", "PSP_API_KEY", "sk_test"))
	if err != nil {
		t.Fatal(err)
	}
	wantWorker := config.Worker{
		DatabaseURL: url, Parts: []string{"all"}, ExpiryInterval: time.Second, Kafka: config.Kafka{Brokers: []string{"a:9092"}, TopicPrefix: "oncepay.", TLS: "off"},
		WebhooksGroup: "webhooks", InboxRetention: 30 * 24 * time.Hour, WebhooksPerEndpoint: 32, WebhooksConcurrency: 1000, AdminAddr: "127.0.0.1:9093", Log: config.Log{LogLevel: slog.LevelInfo, LogFormat: "json"},
		PSPURL: "http://127.0.0.1:8090", PSPAPIKey: "sk_test", PSPKeyRetention: 24 * time.Hour, PSPConcurrency: 64, PSPInterval: 20 * time.Millisecond,
	}
	if diff := cmp.Diff(wantWorker, worker); diff != "" {
		t.Errorf("worker (-want +got):\n%s", diff)
	}

	migrate, err := config.LoadMigrate(env("DATABASE_URL", url))
	if err != nil || migrate.DatabaseURL != url {
		t.Errorf("migrate = %+v, %v", migrate, err)
	}
}

func TestSetVariableWins(t *testing.T) {
	t.Parallel()
	got, err := config.LoadAPI(env(
		"DATABASE_URL", url, "DATABASE_READ_URL", "postgres://a,b/x?target_session_attrs=any", "DATABASE_POOL", "1", "ROW_LEVEL_SECURITY", "off", "HTTP_ADDR", "127.0.0.1:0",
		"ADMIN_ADDR", ":0", "PPROF_ADDR", ":1", "RATE_LIMIT", "50", "SHUTDOWN_DELAY", "5s", "IDEMPOTENCY_RETENTION", "720h", "LOG_LEVEL", "DEBUG", "LOG_FORMAT", "text",
		"COMMITTERS", "64", "BATCH_MAX", "1", "TENANT_MAX", "1", "AUTHORIZATION_MIN", "5s",
	))
	if err != nil {
		t.Fatal(err)
	}
	want := config.API{
		DatabaseURL: url, DatabaseReadURL: "postgres://a,b/x?target_session_attrs=any", DatabasePool: 1, RowSecurity: "off", HTTPAddr: "127.0.0.1:0", AdminAddr: ":0", Pprof: config.Pprof{PprofAddr: ":1"},
		Committers: 64, BatchMax: 1, TenantMax: 1, AuthorizationMin: 5 * time.Second,
		RateLimit: 50, ShutdownDelay: 5 * time.Second,
		IdempotencyRetention: 720 * time.Hour, Log: config.Log{LogLevel: slog.LevelDebug, LogFormat: "text"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAllProblemsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := config.LoadRelay(env(
		"KAFKA_BROKERS", "kafka:9092,http://kafka:9092", "RELAY_LEASE", "500ms", "RELAY_BATCH", "many", "OUTBOX_RETENTION", "30d",
		"TOPIC_PREFIX", "once/pay", "LOG_FORMAT", "xml", "LOG_LEVEL", "loud", "ADMIN_ADDR", "9091",
	))
	if err == nil {
		t.Fatal("no error")
	}
	want := strings.TrimSpace(`
DATABASE_URL is not set, for example DATABASE_URL=postgres://relay:secret@localhost:5432/oncepay
KAFKA_BROKERS must be host:port separated by commas, without a scheme; number 2 is not, for example KAFKA_BROKERS=kafka-1:9092,kafka-2:9092
TOPIC_PREFIX must be up to 200 letters, digits, dots, hyphens and underscores, for example TOPIC_PREFIX=oncepay.
RELAY_LEASE must be a duration from 1s to 1m, for example RELAY_LEASE=3s
RELAY_BATCH must be a whole number from 1 to 10000, for example RELAY_BATCH=2500
OUTBOX_RETENTION must be a duration of at least 1h, for example OUTBOX_RETENTION=168h
ADMIN_ADDR must be an address to listen on, [host]:port, for example ADMIN_ADDR=127.0.0.1:9091
LOG_LEVEL must be debug, info, warn or error, for example LOG_LEVEL=info
LOG_FORMAT must be json or text, for example LOG_FORMAT=json`)
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProblemIsReportedOnce(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "oncepay", "mysql://localhost"} {
		_, err := config.LoadAPI(env("DATABASE_URL", value))
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "DATABASE_URL ") {
			t.Errorf("DATABASE_URL=%q: %v", value, err)
		}
	}
}

func TestStatementsCarryNoValues(t *testing.T) {
	t.Parallel()
	for mode, right := range map[string]bool{"cache_statement": true, "cache_describe": true, "describe_exec": false, "exec": false, "simple_protocol": false} {
		_, err := config.LoadAPI(env("DATABASE_URL", url+"?default_query_exec_mode="+mode))
		if (err == nil) != right || err != nil && !strings.Contains(err.Error(), "default_query_exec_mode") {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestErrorsRepeatNoValue(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"postgres://u:hunter2@localhost:http/x",
		"postgres://u:hunter2@localhost/x?sslmode=sometimes",
		"postgres://u:hunter2@localhost/x?sslrootcert=/nowhere&sslmode=verify-full",
		"postgres://u:hunter2/3@localhost/x",
		"postgres://u:hunter2%zz@localhost/x",
		"host=localhost password=hunter2",
		"hunter2",
	} {
		for _, name := range []string{"DATABASE_URL", "KAFKA_BROKERS", "ADMIN_ADDR", "TOPIC_PREFIX", "LOG_LEVEL", "LOG_FORMAT", "RELAY_LEASE", "RELAY_BATCH",
			"KAFKA_TLS", "KAFKA_CA_FILE", "KAFKA_SASL_MECHANISM", "KAFKA_USERNAME", "KAFKA_PASSWORD_FILE", "RELAY_COMPRESSION", "RELAY_PARTITION_CHANGE",
			"TOPIC_PARTITIONS", "TOPIC_REPLICATION", "TOPIC_MIN_INSYNC"} {
			_, err := config.LoadRelay(env("DATABASE_URL", url, "KAFKA_BROKERS", "kafka:9092", name, value))
			if name == "TOPIC_PREFIX" && value == "hunter2" {
				continue // a right value
			}
			if err == nil {
				t.Errorf("%s=%s was accepted", name, value)
			} else if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s=%s is repeated: %v", name, value, err)
			}
		}
	}
}

func TestExamplesAreValid(t *testing.T) {
	t.Parallel()
	// The errors of an empty environment carry the examples of what is required.
	_, missing := config.LoadRelay(env())
	var pairs []string
	for line := range strings.Lines(missing.Error()) {
		_, example, _ := strings.Cut(strings.TrimSpace(line), "for example ")
		name, value, _ := strings.Cut(example, "=")
		pairs = append(pairs, name, value)
	}
	if _, err := config.LoadRelay(env(pairs...)); err != nil || len(pairs) != 4 {
		t.Errorf("with %q: %v", pairs, err)
	}
}

func TestTableNamesEveryVariable(t *testing.T) {
	t.Parallel()
	table := config.Table()
	for _, line := range []string{
		"| variable | programs | default | meaning |",
		"| `KAFKA_BROKERS` | relay, consumer, worker | required | Kafka bootstrap brokers, host:port separated by commas |",
		"| `IDEMPOTENCY_RETENTION` | api | `72h` | how long an answer is promised to be kept under its idempotency key; kept is the longest that any instance has promised (24h to 720h) |",
		"| `DATABASE_READ_URL` | api | `$DATABASE_URL` | ",
		"| `ADMIN_ADDR` | relay | `127.0.0.1:9091` | ",
		"| `LOG_FORMAT` | api, relay, consumer, worker | `json` | ",
		"| `DATABASE_URL` | migrate, oncepay | required | ",
		"| `ONCEPAY_URL` | oncepay | `http://127.0.0.1:8080` | ",
	} {
		if !strings.Contains(table, line) {
			t.Errorf("no line %s in\n%s", line, table)
		}
	}
	for line := range strings.Lines(table) {
		if strings.Count(line, "|") != 5 {
			t.Errorf("not four columns: %s", line)
		}
	}
}

func TestUsageListsOwnVariables(t *testing.T) {
	t.Parallel()
	usage := config.Usage("consumer")
	if !strings.Contains(usage, "CONSUMER_GROUP") || !strings.Contains(usage, "127.0.0.1:9092") || strings.Contains(usage, "RELAY_NAME") {
		t.Errorf("usage:\n%s", usage)
	}
}

func TestOncepayHalvesAreIndependent(t *testing.T) {
	t.Parallel()
	if owner, err := config.LoadOwner(env("DATABASE_URL", url)); err != nil || owner.DatabaseURL != url {
		t.Errorf("an operator without a token: %+v, %v", owner, err)
	}
	caller, err := config.LoadCaller(env("ONCEPAY_TOKEN", "oncepay_x"))
	if diff := cmp.Diff(config.Caller{URL: "http://127.0.0.1:8080", Token: "oncepay_x"}, caller); err != nil || diff != "" {
		t.Errorf("a client without a database: %v (-want +got):\n%s", err, diff)
	}
	for _, value := range []string{"127.0.0.1:8080", "ftp://hunter2", "https://", "http://u:hunter2@localhost", "http://localhost/?x=hunter2", "http://hunter2 "} {
		_, err := config.LoadCaller(env("ONCEPAY_URL", value, "ONCEPAY_TOKEN", "oncepay_x"))
		if err == nil || !strings.HasPrefix(err.Error(), "ONCEPAY_URL must be") || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
			t.Errorf("ONCEPAY_URL=%s: %v", value, err)
		}
	}
	if _, err := config.LoadCaller(env()); err == nil || !strings.HasPrefix(err.Error(), "ONCEPAY_TOKEN is not set") {
		t.Errorf("without a token: %v", err)
	}
}

func TestWorkerPartsAreAList(t *testing.T) {
	t.Parallel()
	const problem = "WORKER_PARTS must be a list of all, psp, expiry, webhooks, separated by commas, for example WORKER_PARTS=all"
	for parts, want := range map[string]string{
		"": "", "all": "", "expiry": "", "expiry, expiry": "", "psp,expiry": "", "expiry,webhooks": "",
		"expiry,": problem, "expiry nonsense": problem, "All": problem, "expiry,nonsense": problem,
	} {
		cfg, err := config.LoadWorker(env("DATABASE_URL", url, "KAFKA_BROKERS", "a:9092", "PSP_URL", "http://127.0.0.1:8090", "PSP_API_KEY", "sk_test", "WORKER_PARTS", parts))
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && got != want {
			t.Errorf("%q: %s", parts, got)
		}
		if want == "" && (!cfg.Does("expiry") || cfg.Does("nonsense") != (parts == "" || parts == "all")) {
			t.Errorf("%q does expiry: %t", parts, cfg.Does("expiry"))
		}
	}
}

func TestWebhookSecretIsCheckedAndNeverShown(t *testing.T) {
	t.Parallel()
	const bytes24, bytes64 = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMw=="
	for secret, good := range map[string]bool{
		"": true, "whsec_" + bytes24: true, "whsec_" + bytes64: true,
		bytes24: false, "whsec_": false, "whsec_" + bytes24[4:]: false, "whsec_" + bytes64[:84] + "NDU2": false,
		"whsec_" + bytes24 + "!": false, "WHSEC_" + bytes24: false,
	} {
		cfg, err := config.LoadAPI(env("DATABASE_URL", url, "PSP_WEBHOOK_SECRET", secret))
		if good != (err == nil) || good && cfg.PSPWebhookSecret != secret {
			t.Errorf("%q: %v", secret, err)
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "PSP_WEBHOOK_SECRET must be whsec_") || strings.Contains(err.Error(), bytes24[4:])) {
			t.Errorf("%q: %v", secret, err)
		}
	}
}

func TestOnlyThePSPPartNeedsAPSP(t *testing.T) {
	t.Parallel()
	const missing = `PSP_URL is not set, for example PSP_URL=https://api.psp.example
PSP_API_KEY is not set, for example PSP_API_KEY=sk_…, as the PSP shows it`
	for parts, want := range map[string]string{"": missing, "all": missing, "psp": missing, "psp,expiry": missing, "expiry": "<nil>", "webhooks": "<nil>"} {
		_, err := config.LoadWorker(env("DATABASE_URL", url, "KAFKA_BROKERS", "a:9092", "WORKER_PARTS", parts))
		if got := fmt.Sprint(err); got != want {
			t.Errorf("%q: %s", parts, got)
		}
	}
	_, err := config.LoadWorker(env("DATABASE_URL", url, "PSP_URL", "https://user:hunter2@psp.example", "PSP_API_KEY", "sk_hunter2", "PSP_INTERVAL", "0s", "WORKER_PARTS", "psp"))
	if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("a secret, or not two lines: %v", err)
	}
}

func TestOnlyWebhooksNeedKafka(t *testing.T) {
	t.Parallel()
	const missing = "KAFKA_BROKERS is not set, for example KAFKA_BROKERS=kafka-1:9092,kafka-2:9092"
	for parts, want := range map[string]string{"": missing, "all": missing, "webhooks": missing, "psp,webhooks": missing, "psp,expiry": "<nil>"} {
		_, err := config.LoadWorker(env("DATABASE_URL", url, "PSP_URL", "http://127.0.0.1:8090", "PSP_API_KEY", "sk_test", "WORKER_PARTS", parts))
		if got := fmt.Sprint(err); got != want {
			t.Errorf("%q: %s", parts, got)
		}
	}
}

func TestAllowedAddresses(t *testing.T) {
	t.Parallel()
	for value, ok := range map[string]bool{
		"": true, "127.0.0.0/8": true, "10.1.0.0/16, ::1/128": true, "10.1.0.1/16": false, "10.1.0.0": false, "localhost": false, "10.0.0.0/8,": false,
	} {
		cfg, err := config.LoadAPI(env("DATABASE_URL", url, "WEBHOOKS_ALLOW", value))
		if (err == nil) != ok {
			t.Errorf("%q: %v", value, err)
		}
		if n := len(config.Prefixes(cfg.WebhooksAllow)); ok && value != "" && n != strings.Count(value, ",")+1 {
			t.Errorf("%q: %d prefixes", value, n)
		}
	}
}

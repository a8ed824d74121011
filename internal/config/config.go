// Package config reads the environment of each program into one struct, in one place.
//
// A loader reports everything that is missing or wrong at once, one line per variable, each with a
// valid example. The text never repeats a value: any of them may contain a password. Unset and empty
// are the same. A loader does not try values out: whether the database answers, the program finds out.
//
// The struct tags are the documentation: Table and Usage are made from them.
//
//	env      the variable
//	default  the value if unset; "$NAME" is the value of another variable; without it, required
//	example  a valid value, if there is no default to show
//	min, max bounds, both inclusive
//	oneof    the only values, separated by spaces
//	check    the name of a further check
//	help     one line for the operator
package config

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// API configures cmd/api.
type API struct {
	DatabaseURL     string `env:"DATABASE_URL" check:"postgres" example:"postgres://api_write:secret@localhost:5432/oncepay" help:"Postgres, as a login with the role api_write; the primary, since it writes"`
	DatabaseReadURL string `env:"DATABASE_READ_URL" default:"$DATABASE_URL" check:"postgres" example:"postgres://api_read:secret@localhost:5432/oncepay" help:"Postgres for GET requests, as a login with the role api_read, which sees only the rows of the tenant that asks; for a standby with target_session_attrs=prefer-standby"`
	DatabasePool    int    `env:"DATABASE_POOL" default:"16" min:"1" max:"1000" help:"most connections of the write pool"`
	RowSecurity     string `env:"ROW_LEVEL_SECURITY" default:"required" oneof:"required off" help:"required: the API does not start when the login of DATABASE_READ_URL sees the rows of every tenant; off: it warns"`

	HTTPAddr         string        `env:"HTTP_ADDR" default:":8080" check:"listen" help:"where clients connect"`
	AdminAddr        string        `env:"ADMIN_ADDR" default:"127.0.0.1:9090" check:"listen" help:"where metrics are served; keep it private"`
	Committers       int           `env:"COMMITTERS" default:"2" min:"1" max:"64" help:"transactions at the same time: about as many as Postgres has processors"`
	BatchMax         int           `env:"BATCH_MAX" default:"100" min:"1" max:"1000" help:"most requests in one transaction; 1 = no group commit, which needs more COMMITTERS"`
	TenantMax        int           `env:"TENANT_MAX" default:"300" min:"1" max:"100000" help:"how many requests of one tenant each instance works on at the same time; more are answered 429, replays aside"`
	RateLimit        int           `env:"RATE_LIMIT" default:"0" min:"0" help:"how many new requests a second each instance executes for one client; more are answered 429, replays aside; 0 = no limit"`
	AuthorizationMin time.Duration `env:"AUTHORIZATION_MIN" default:"1m" min:"1s" max:"1m" help:"the shortest authorization that a payment with capture: manual may ask for; below 1m for demonstrations and tests only"`
	WebhooksAllow    []string      `env:"WEBHOOKS_ALLOW" default:"" check:"prefixes" example:"10.1.0.0/16,127.0.0.0/8" help:"addresses that webhooks may go to although they are not public, by http as well, as prefixes separated by commas"`
	ShutdownDelay    time.Duration `env:"SHUTDOWN_DELAY" default:"0s" min:"0s" max:"5m" help:"how long /readyz says no before the listener closes; 5s behind a load balancer, so that it notices first"`

	PSPWebhookSecret string `env:"PSP_WEBHOOK_SECRET" default:"" check:"webhook-secret" example:"whsec_…, as the PSP shows it" help:"verifies the PSP's webhooks to /webhooks/psp; unset: there is no such route, and only the worker learns what became of a charge"`

	// 72h, so that a Friday-night failure survives the weekend.
	IdempotencyRetention time.Duration `env:"IDEMPOTENCY_RETENTION" default:"72h" min:"24h" max:"720h" help:"how long an answer is promised to be kept under its idempotency key; kept is the longest that any instance has promised"`
	Pprof
	Log
}

// Relay configures cmd/relay.
type Relay struct {
	DatabaseURL string `env:"DATABASE_URL" check:"postgres" example:"postgres://relay:secret@localhost:5432/oncepay" help:"Postgres, as a login with the role relay; the primary, never a standby"`
	Kafka

	Name            string        `env:"RELAY_NAME" default:"main" check:"relay" help:"the cursor and lease that this instance shares with its standbys"`
	Delivery        string        `env:"RELAY_DELIVERY" default:"at-least-once" oneof:"at-least-once exactly-once" help:"what a crash of relay or broker repeats. at-least-once: what was in hand; exactly-once: nothing that readers with read_committed see"`
	Lease           time.Duration `env:"RELAY_LEASE" default:"3s" min:"1s" max:"1m" help:"how long standbys wait for a dead leader"`
	Batch           int           `env:"RELAY_BATCH" default:"2500" min:"1" max:"10000" help:"most events read at once, with exactly-once four times as many; a crash repeats two batches at most"`
	Compression     string        `env:"RELAY_COMPRESSION" default:"snappy" oneof:"none gzip snappy lz4 zstd" help:"of the records on Kafka; every consumer's client must know the codec"`
	PartitionChange string        `env:"RELAY_PARTITION_CHANGE" default:"refuse" oneof:"refuse drain" help:"what to do when a topic's number of partitions changed. refuse: send nothing more; drain: go on once everything sent is acknowledged"`

	// What exists is left alone: see "Copies in Kafka" in docs/operating.md.
	TopicPartitions  int `env:"TOPIC_PARTITIONS" default:"12" min:"1" max:"10000" help:"partitions of each topic that the relay makes"`
	TopicReplication int `env:"TOPIC_REPLICATION" default:"" example:"3" min:"1" max:"100" help:"replicas of each topic that the relay makes; unset: the broker's default"`
	TopicMinInsync   int `env:"TOPIC_MIN_INSYNC" default:"" example:"2" min:"1" max:"100" help:"min.insync.replicas of each topic that the relay makes, and how many copies of every acknowledged event are wanted: a topic that promises fewer is an alarm; unset: the broker's default, and 2 are wanted"`

	OutboxRetention time.Duration `env:"OUTBOX_RETENTION" default:"168h" min:"1h" help:"how long events stay in the outbox after they were sent"`

	AdminAddr string `env:"ADMIN_ADDR" default:"127.0.0.1:9091" check:"listen" help:"where metrics, /livez and /readyz are served; keep it private"`
	Pprof
	Log
}

// together returns what is wrong with variables that are right each for itself.
func (r Relay) together() []error {
	problems := r.Kafka.together()

	// Kafka makes such a topic, and then takes no record for it. Its default replication is unknown
	// here.
	if r.TopicMinInsync > 1 && r.TopicReplication < r.TopicMinInsync {
		problems = append(problems, errors.New("TOPIC_MIN_INSYNC needs TOPIC_REPLICATION of at least "+
			"as many: a topic with fewer replicas takes no event"))
	}

	return problems
}

// Consumer configures cmd/consumer.
type Consumer struct {
	DatabaseURL string `env:"DATABASE_URL" check:"postgres" example:"postgres://consumer:secret@localhost:5432/oncepay" help:"Postgres, as a login with the role consumer"`
	Kafka
	Group          string        `env:"CONSUMER_GROUP" default:"statements" help:"Kafka consumer group; its instances share the partitions"`
	InboxRetention time.Duration `env:"INBOX_RETENTION" default:"720h" min:"24h" help:"how long events are remembered, so that none takes effect twice; must exceed retention.ms plus segment.ms of the topics by a day, or the inbox is not trimmed"`

	AdminAddr string `env:"ADMIN_ADDR" default:"127.0.0.1:9092" check:"listen" help:"where metrics, /livez and /readyz are served; keep it private"`
	Pprof
	Log
}

// Worker configures cmd/worker.
type Worker struct {
	DatabaseURL    string        `env:"DATABASE_URL" check:"postgres" example:"postgres://worker:secret@localhost:5432/oncepay" help:"Postgres, as a login with the role worker; the primary, since it writes"`
	Parts          []string      `env:"WORKER_PARTS" default:"all" oneof:"all psp expiry webhooks" help:"what this instance does, separated by commas. psp: charge and refund cards at the payment service provider (PSP); expiry: release authorizations whose time is over; webhooks: send events to the endpoints of tenants, which needs Kafka"`
	ExpiryInterval time.Duration `env:"EXPIRY_INTERVAL" default:"1s" min:"100ms" max:"1m" help:"how often to look for authorizations whose time is over"`

	PSPURL          string        `env:"PSP_URL" check:"url" example:"https://api.psp.example" help:"where the PSP's API is; psp needs it"`
	PSPAPIKey       string        `env:"PSP_API_KEY" example:"sk_…, as the PSP shows it" help:"our credential at the PSP; psp needs it"`
	PSPKeyRetention time.Duration `env:"PSP_KEY_RETENTION" default:"24h" min:"1m" max:"720h" help:"how long the PSP remembers an idempotency key: afterwards an operation whose result is unknown is looked up, not sent again"`
	PSPConcurrency  int           `env:"PSP_CONCURRENCY" default:"64" min:"1" max:"1000" help:"calls of the PSP at a time"`
	PSPInterval     time.Duration `env:"PSP_INTERVAL" default:"20ms" min:"1ms" max:"1m" help:"how often to look for operations of the PSP when none was due"`

	// Of the part webhooks.
	Kafka
	WebhooksGroup       string        `env:"WEBHOOKS_GROUP" default:"webhooks" help:"Kafka consumer group of the workers that send webhooks"`
	InboxRetention      time.Duration `env:"INBOX_RETENTION" default:"720h" min:"24h" help:"how long events are remembered, so that none takes effect twice; must exceed retention.ms plus segment.ms of the topics by a day, or the inbox is not trimmed"`
	WebhooksAllow       []string      `env:"WEBHOOKS_ALLOW" default:"" check:"prefixes" example:"10.1.0.0/16,127.0.0.0/8" help:"addresses that webhooks may go to although they are not public, by http as well, as prefixes separated by commas"`
	WebhooksPerEndpoint int           `env:"WEBHOOKS_PER_ENDPOINT" default:"32" min:"1" max:"1000" help:"most webhooks on their way to one endpoint from one worker"`
	WebhooksConcurrency int           `env:"WEBHOOKS_CONCURRENCY" default:"1000" min:"1" max:"10000" help:"most webhooks on their way from one worker"`

	AdminAddr string `env:"ADMIN_ADDR" default:"127.0.0.1:9093" check:"listen" help:"where metrics, /livez and /readyz are served; keep it private"`
	Pprof
	Log
}

// Does reports whether the worker does this part of its work.
func (w Worker) Does(part string) bool {
	return slices.Contains(w.Parts, part) || slices.Contains(w.Parts, "all")
}

// needs reports whether a variable without a default must be set: only for the part that uses it.
func (w Worker) needs(name string) bool {
	switch {
	case strings.HasPrefix(name, "PSP_"):
		return w.Does("psp")
	case name == "KAFKA_BROKERS":
		return w.Does("webhooks")
	}
	return true
}

// Prefixes returns the addresses of a variable like WEBHOOKS_ALLOW.
func Prefixes(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text)) // load has checked it
	}
	return all
}

// Migrate configures cmd/migrate.
type Migrate struct{ Owner }

// Oncepay configures cmd/oncepay: an operator's commands need one half of it, a client's the other.
type Oncepay struct {
	Owner
	Caller
	PSP
	Target
}

// Owner is the database as its operator sees it.
type Owner struct {
	DatabaseURL string `env:"DATABASE_URL" check:"postgres" example:"postgres://postgres:secret@localhost:5432/oncepay" help:"Postgres, as the owner of the schema"`
}

// PSP is the payment service provider as its books are compared with ours.
type PSP struct {
	PSPURL    string `env:"PSP_URL" check:"url" example:"https://api.psp.example" help:"where the PSP's API is, for reconcile psp"`
	PSPAPIKey string `env:"PSP_API_KEY" example:"sk_…, as the PSP shows it" help:"our credential at the PSP, for reconcile psp"`
}

// Target is the database that a tenant moves to, as its operator sees it.
type Target struct {
	TargetURL string `env:"TARGET_DATABASE_URL" check:"postgres" example:"postgres://postgres:secret@other:5432/oncepay" help:"Postgres of another cluster, as the owner of its schema, for tenants move and stay"`
}

// Caller is the service as its clients see it.
type Caller struct {
	URL   string `env:"ONCEPAY_URL" default:"http://127.0.0.1:8080" check:"url" help:"where the API is, for the commands of a client"`
	Token string `env:"ONCEPAY_TOKEN" example:"oncepay_…, as seed or credentials create showed it" help:"the client's credential"`
}

// Kafka is how to reach the brokers and log in, and the names of topics.
type Kafka struct {
	Brokers      []string `env:"KAFKA_BROKERS" check:"brokers" example:"kafka-1:9092,kafka-2:9092" help:"Kafka bootstrap brokers, host:port separated by commas"`
	TLS          string   `env:"KAFKA_TLS" default:"off" oneof:"off on" help:"on: connections to Kafka are encrypted and the brokers' certificates verified"`
	CAFile       string   `env:"KAFKA_CA_FILE" default:"" check:"certificates" example:"/etc/kafka/ca.pem" help:"PEM file with the authorities that sign the brokers' certificates; unset: the system's"`
	Mechanism    string   `env:"KAFKA_SASL_MECHANISM" default:"" oneof:"PLAIN SCRAM-SHA-256 SCRAM-SHA-512" example:"SCRAM-SHA-512" help:"how to log in to Kafka; unset: no login. PLAIN needs KAFKA_TLS=on"`
	Username     string   `env:"KAFKA_USERNAME" default:"" example:"relay" help:"Kafka user"`
	PasswordFile string   `env:"KAFKA_PASSWORD_FILE" default:"" check:"secret" example:"/run/secrets/kafka" help:"file with the Kafka user's password; read for each new connection"`
	TopicPrefix  string   `env:"TOPIC_PREFIX" default:"oncepay." check:"topic" help:"prefix of every topic's name"`
}

// Pprof configures profiling. It has a listener of its own, since whoever may scrape metrics should
// not be able to profile: a profile costs processor time, and a heap dump or trace shows too much.
type Pprof struct {
	PprofAddr string `env:"PPROF_ADDR" default:"" check:"listen" example:"127.0.0.1:6060" help:"where /debug/pprof/ is served, which profiles the process for whoever asks; unset: nowhere"`
}

// Log configures the log, which goes to standard error.
type Log struct {
	LogLevel  slog.Level `env:"LOG_LEVEL" default:"info" help:"debug, info, warn or error"`
	LogFormat string     `env:"LOG_FORMAT" default:"json" oneof:"json text" help:"json for machines, text for people"`
}

// LoadAPI reads the configuration of cmd/api.
func LoadAPI(getenv func(string) string) (API, error) { return load[API](getenv) }

// LoadRelay reads the configuration of cmd/relay.
func LoadRelay(getenv func(string) string) (Relay, error) { return load[Relay](getenv) }

// LoadConsumer reads the configuration of cmd/consumer.
func LoadConsumer(getenv func(string) string) (Consumer, error) { return load[Consumer](getenv) }

// LoadWorker reads the configuration of cmd/worker.
func LoadWorker(getenv func(string) string) (Worker, error) { return load[Worker](getenv) }

// LoadMigrate reads the configuration of cmd/migrate.
func LoadMigrate(getenv func(string) string) (Migrate, error) { return load[Migrate](getenv) }

// LoadOwner reads what an operator's commands of cmd/oncepay need.
func LoadOwner(getenv func(string) string) (Owner, error) { return load[Owner](getenv) }

// LoadPSP reads what oncepay reconcile psp needs.
func LoadPSP(getenv func(string) string) (PSP, error) { return load[PSP](getenv) }

// LoadTarget reads what oncepay tenants move and stay need besides.
func LoadTarget(getenv func(string) string) (Target, error) { return load[Target](getenv) }

// LoadCaller reads what a client's commands of cmd/oncepay need.
func LoadCaller(getenv func(string) string) (Caller, error) { return load[Caller](getenv) }

// Package local runs the whole service on this machine, on servers that live as long as the demo: two
// relays, and one process of each other program. A process can be killed, frozen and started again.
package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/migrations"
	"github.com/oncepay/oncepay/test/pgproxy"
)

// Service is what runs. Set Say and Dir, then call Open.
type Service struct {
	Say func(format string, args ...any)
	Dir string // programs and logs

	// Proxied leads the API's payments through a proxy in front of Postgres: see LoseCommitReply.
	Proxied bool

	postgres *embedded.Postgres
	kafka    Broker
	proxy    *pgproxy.Proxy
	replies  replies

	address  string // the API's
	provider string // fakepsp's
	programs []*Program
	ended    chan error
}

// Programs are in the order in which requests pass through them. The worker goes on with what a
// request began.
var Programs = []string{"api", "worker", "fakepsp", "relay", "consumer"}

// PSPKey is what fakepsp and worker share; docker-compose.yml has it as well. It protects nothing:
// fakepsp moves no money.
const (
	PSPKey    = "psp_development"
	pspSecret = "whsec_b25jZXBheS1kZXZlbG9wbWVudC1vbmx5" // as Standard Webhooks write it
)

// Batch is RELAY_BATCH: small, so that repeats show as such.
const Batch = 100

// TopicPrefix is TOPIC_PREFIX's default.
const TopicPrefix = "oncepay."

// Open starts everything.
func (s *Service) Open(ctx context.Context) (err error) {
	s.ended = make(chan error, len(Programs)+1)
	for _, address := range []*string{&s.address, &s.provider} {
		if *address, err = process.FreeAddress(); err != nil {
			return err
		}
	}

	s.Say("building api, relay, consumer, worker, fakepsp and oncepay")
	if err := process.Build(ctx, s.Dir, []string{"-ldflags=-s -w"}, append(Programs, "oncepay")...); err != nil {
		return err
	}

	if err := s.openServers(ctx); err != nil {
		return err
	}

	// The API comes last: when it serves, everything behind it runs.
	for _, p := range []*Program{
		{Name: "consumer"}, {Name: "relay-1", Kind: "relay"}, {Name: "relay-2", Kind: "relay"},
		{Name: "fakepsp"}, {Name: "worker"}, {Name: "api"},
	} {
		if p.Kind == "" {
			p.Kind = p.Name
		}
		p.service, p.state = s, Down
		s.programs = append(s.programs, p)

		if err := p.Start(ctx); err != nil {
			return err
		}
		if p.Kind == "fakepsp" {
			s.Say("%-8s  its books at %s/admin/totals", p.Name, s.PSP())
			continue
		}
		s.Say("%-8s  metrics at http://%s/metrics", p.Name, p.Admin())
	}

	s.Say("requests go to %s", s.URL())
	return nil
}

func (s *Service) openServers(ctx context.Context) (err error) {
	s.Say("starting Postgres, which is downloaded once if this machine has none")
	s.postgres, err = embedded.StartPostgres(ctx, embedded.PostgresOptions{
		Download: os.Getenv("EMBEDDED_POSTGRES") == "download",
	})
	if err != nil {
		return err
	}
	s.Say("Postgres %s runs: %s", s.postgres.Version(), s.postgres.Origin())

	if s.kafka.Kafka, err = embedded.StartKafka(); err != nil {
		return err
	}
	s.Say("Kafka runs: %s", s.kafka.Origin())

	if err := embedded.CreateRoles(ctx, s.Owner()); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, s.Owner()); err != nil {
		return fmt.Errorf("apply the schema: %w", err)
	}

	if s.Proxied {
		s.proxy, err = pgproxy.Listen(s.Owner(), s.replies.fate, s.replies.seen)
	}
	return err
}

// All returns the programs.
func (s *Service) All() []*Program { return s.programs }

// of returns the programs of a kind.
func (s *Service) of(kind string) (all []*Program) {
	for _, p := range s.programs {
		if p.Kind == kind {
			all = append(all, p)
		}
	}
	return all
}

// Find returns the program of a kind; of the relays the one that leads, or nil if none does.
func (s *Service) Find(ctx context.Context, kind string) (*Program, error) {
	if kind == "relay" {
		return s.leader(ctx)
	}
	for _, p := range s.of(kind) {
		return p, nil
	}
	return nil, fmt.Errorf("there is no program %s", kind)
}

// A holder is host, process id and a number of its own.
const readLeader = `
SELECT split_part(holder, '/', 2)::int FROM outbox_cursors WHERE lease_until > clock_timestamp()`

// leader asks the lease, not the relays: a frozen one still believes that it leads.
func (s *Service) leader(ctx context.Context) (*Program, error) {
	conn, err := pgx.Connect(ctx, s.Owner())
	if err != nil {
		return nil, fmt.Errorf("look for the leading relay: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))

	rows, _ := conn.Query(ctx, readLeader) // CollectRows returns its error
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("look for the leading relay: %w", err)
	}
	for _, p := range s.of("relay") {
		if len(pids) == 1 && p.Pid() == pids[0] {
			return p, nil
		}
	}
	return nil, nil
}

// Failed delivers the error of a program that ended without being killed.
func (s *Service) Failed() <-chan error { return s.ended }

// Oncepay runs the command-line program as the schema's owner.
func (s *Service) Oncepay(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Dir, "oncepay"), args...)
	cmd.Env = []string{"DATABASE_URL=" + s.Owner()}
	return cmd
}

// Close stops what Open started, programs first, in the order in which requests pass through them.
func (s *Service) Close() {
	s.Heal()
	for _, kind := range Programs {
		for _, p := range s.of(kind) {
			p.stop()
		}
	}

	if s.proxy != nil {
		s.proxy.Close()
	}
	if s.kafka.Kafka != nil {
		s.kafka.Stop()
	}

	if s.postgres != nil {
		// This runs after Ctrl-C, too: take a context of its own.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.postgres.Stop(ctx); err != nil {
			s.Say("postgres: %v", err)
		}
	}
}

// Heal ends what holds the service up: it wakes what is frozen and brings the broker back.
func (s *Service) Heal() {
	if s.kafka.Kafka != nil {
		s.kafka.heal()
	}
	for _, p := range s.programs {
		_ = p.Thaw() // not frozen, or gone
	}
}

// PSP returns fakepsp's URL.
func (s *Service) PSP() string { return "http://" + s.provider }

// URL returns the API's.
func (s *Service) URL() string { return "http://" + s.address }

// Owner returns the database's, as the schema's owner.
func (s *Service) Owner() string { return s.as("postgres") }

func (s *Service) as(role string) string { return s.postgres.URL(role, "postgres") }

// Brokers returns the addresses of Kafka.
func (s *Service) Brokers() []string { return s.kafka.Brokers() }

// Kafka returns the broker.
func (s *Service) Kafka() *Broker { return &s.kafka }

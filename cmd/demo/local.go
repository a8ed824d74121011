package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/migrations"
)

// local runs the service on servers that live as long as the demo.
type local struct {
	say func(format string, args ...any)
	dir string // programs and logs

	postgres *embedded.Postgres
	kafka    *embedded.Kafka

	// A program gets its addresses again when it is restarted.
	address  string            // the API's
	provider string            // fakepsp's
	admin    map[string]string // by program

	running map[string]*program
	ended   chan error
}

// program is one of the service. Its end is a failure, unless we end it.
type program struct {
	*process.Process
	ending atomic.Bool
}

func (l *local) open(ctx context.Context) (err error) {
	l.running, l.ended = map[string]*program{}, make(chan error, len(programs))
	l.admin = map[string]string{}
	for _, address := range []*string{&l.address, &l.provider} {
		if *address, err = freeAddress(); err != nil {
			return err
		}
	}

	l.say("building api, relay, consumer, worker, fakepsp and oncepay")
	if err := process.Build(ctx, l.dir, []string{"-ldflags=-s -w"}, append(programs, "oncepay")...); err != nil {
		return err
	}

	l.say("starting Postgres, which is downloaded once if this machine has none")
	l.postgres, err = embedded.StartPostgres(ctx, embedded.PostgresOptions{
		Download: os.Getenv("EMBEDDED_POSTGRES") == "download",
	})
	if err != nil {
		return err
	}
	l.say("Postgres %s runs: %s", l.postgres.Version(), l.postgres.Origin())

	if l.kafka, err = embedded.StartKafka(); err != nil {
		return err
	}
	l.say("Kafka runs: %s", l.kafka.Origin())

	if err := embedded.CreateRoles(ctx, l.owner()); err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, l.owner()); err != nil {
		return fmt.Errorf("apply the schema: %w", err)
	}

	// The API comes last: when it serves, everything behind it runs.
	for _, name := range []string{"consumer", "relay", "fakepsp", "worker", "api"} {
		if err := l.start(ctx, name); err != nil {
			return err
		}
		if name == "fakepsp" {
			l.say("%-8s  its books at %s/admin/totals", name, l.psp())
			continue
		}
		l.say("%-8s  metrics at http://%s/metrics", name, l.admin[name])
	}

	l.say("requests go to %s", l.url())
	return nil
}

func (l *local) start(ctx context.Context, name string) error {
	env := []string{
		"DATABASE_URL=" + l.as(name), "KAFKA_BROKERS=" + strings.Join(l.brokers(), ","),
		"RELAY_BATCH=" + strconv.Itoa(l.batch()), "PSP_URL=" + l.psp(), "PSP_API_KEY=" + pspKey,
		webhooksAllow,
	}
	switch name {
	case "fakepsp":
		env = []string{
			"PSP_API_KEY=" + pspKey, "PSP_WEBHOOK_SECRET=" + pspSecret, "FAKEPSP_ADDR=" + l.provider,
			"FAKEPSP_DIR=" + filepath.Join(l.dir, "psp"),
			"FAKEPSP_WEBHOOK_URL=" + l.url() + "/webhooks/psp",
		}
	case "api":
		env = []string{
			"DATABASE_URL=" + l.as("api_write"), "DATABASE_READ_URL=" + l.as("api_read"),
			"HTTP_ADDR=" + l.address, "AUTHORIZATION_MIN=1s", "PSP_WEBHOOK_SECRET=" + pspSecret,
			webhooksAllow,
		}
	}
	if admin := l.admin[name]; admin != "" {
		env = append(env, "ADMIN_ADDR="+admin)
	}

	started, err := process.Start(ctx, l.dir, name, env...)
	if err != nil {
		return err
	}

	l.admin[name] = started.Admin

	p := &program{Process: started}
	l.running[name] = p

	go func() {
		<-p.Ended
		if !p.ending.Load() {
			l.ended <- p.Err()
		}
	}()
	return nil
}

// kill catches a relay with a batch at the broker, and a consumer between committing its effects
// and its offsets.
func (l *local) kill(ctx context.Context, v victim) error {
	p := l.running[v.program]
	p.ending.Store(true)

	// A relay dies while it sends payments, not its progress; a consumer before its offsets are
	// committed.
	request, catch := map[string]kmsg.Key{
		"relay": kmsg.Produce, "consumer": kmsg.OffsetCommit,
	}[v.program]
	if !catch {
		p.Kill()
		return nil
	}

	dead := make(chan struct{})
	l.kafka.Catch(request, topicPrefix+"payments", func() (drop bool) {
		defer close(dead)
		// Kill it before the broker answers: the cursor must not be behind this batch.
		p.Kill()
		return v.batch != landed
	})

	select {
	case <-dead:
		return nil
	case <-time.After(catchMax):
		return fmt.Errorf("kill %s: it had nothing to do for %s", v.program, catchMax)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// catchMax is longer than a relay or consumer rests between two batches under any load.
const catchMax = 10 * time.Second

// webhooksAllow lets webhooks go to the demo's own receiver.
const webhooksAllow = "WEBHOOKS_ALLOW=127.0.0.0/8"

func (l *local) failed() <-chan error { return l.ended }

func (l *local) oncepay(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.dir, "oncepay"), args...)
	cmd.Env = []string{"DATABASE_URL=" + l.owner()}
	return output(cmd)
}

// close stops what open started, programs first, in the order in which requests pass through them.
func (l *local) close() {
	for _, name := range programs {
		if p := l.running[name]; p != nil {
			p.ending.Store(true)
			p.Stop()
		}
	}

	if l.kafka != nil {
		l.kafka.Stop()
	}

	if l.postgres != nil {
		// This runs after Ctrl-C, too: take a context of its own.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.postgres.Stop(ctx); err != nil {
			l.say("postgres: %v", err)
		}
	}
}

func (l *local) psp() string           { return "http://" + l.provider }
func (l *local) url() string           { return "http://" + l.address }
func (l *local) owner() string         { return l.as("postgres") }
func (l *local) as(role string) string { return l.postgres.URL(role, "postgres") }
func (l *local) brokers() []string     { return l.kafka.Brokers() }
func (l *local) batch() int            { return 100 } // small, so that repeats show as such

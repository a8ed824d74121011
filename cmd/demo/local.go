package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
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
	address string            // the API's
	admin   map[string]string // by program

	mu      sync.Mutex
	running map[string]*process.Process
	ended   chan error
}

const database = "oncepay"

func (l *local) open(ctx context.Context) (err error) {
	l.running, l.ended = map[string]*process.Process{}, make(chan error, len(programs))
	l.address, l.admin = "127.0.0.1:0", map[string]string{}

	l.say("building api, relay, consumer and oncepay")
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

	if err := l.migrate(ctx); err != nil {
		return err
	}

	// The API comes last: when it serves, everything behind it runs.
	for _, program := range []string{"consumer", "relay", "api"} {
		if err := l.start(ctx, program); err != nil {
			return err
		}
		l.say("%-8s  metrics at http://%s/metrics", program, l.admin[program])
	}

	l.say("requests go to %s", l.url())
	return nil
}

// migrate creates roles, database and schema.
func (l *local) migrate(ctx context.Context) error {
	maintenance := l.postgres.URL("postgres", "postgres")
	if err := embedded.CreateRoles(ctx, maintenance); err != nil {
		return err
	}

	conn, err := pgx.Connect(ctx, maintenance)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))

	if _, err := conn.Exec(ctx, `CREATE DATABASE `+pgx.Identifier{database}.Sanitize()); err != nil {
		return fmt.Errorf("create database: %w", err)
	}

	if _, err := migrations.Up(ctx, l.owner()); err != nil {
		return fmt.Errorf("apply the schema: %w", err)
	}
	return nil
}

func (l *local) start(ctx context.Context, program string) error {
	var env []string
	switch program {
	case "api":
		env = []string{
			"DATABASE_URL=" + l.as("api_write"), "DATABASE_READ_URL=" + l.as("api_read"),
			"HTTP_ADDR=" + l.address,
		}
	default:
		env = []string{
			"RELAY_BATCH=" + strconv.Itoa(l.batch()), "DATABASE_URL=" + l.as(program),
			"KAFKA_BROKERS=" + strings.Join(l.brokers(), ","),
		}
	}

	if admin := l.admin[program]; admin != "" {
		env = append(env, "ADMIN_ADDR="+admin)
	}

	p, err := process.Start(ctx, l.dir, program, env...)
	if err != nil {
		return err
	}

	l.admin[program] = p.Admin
	if program == "api" {
		l.address = p.Addr
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[program] = p

	go func() {
		<-p.Ended
		if l.forget(program, p) { // it ended by itself: neither kill nor close forgot it
			l.ended <- p.Err()
		}
	}()
	return nil
}

// kill catches a relay with a batch at the broker, and a consumer between committing its effects
// and its offsets.
func (l *local) kill(ctx context.Context, v victim) error {
	l.mu.Lock()
	p := l.running[v.program]
	l.mu.Unlock()
	if p == nil || !l.forget(v.program, p) {
		return fmt.Errorf("kill %s: it does not run", v.program)
	}

	// A relay dies while it sends, a consumer before its offsets are committed.
	request, catch := map[string]kmsg.Key{
		"relay": kmsg.Produce, "consumer": kmsg.OffsetCommit,
	}[v.program]
	if !catch {
		p.Kill()
		return nil
	}

	payments, err := l.topicID(ctx, topicPrefix+"payments")
	if err != nil {
		return err
	}

	wanted := func(r kmsg.Request) bool {
		produce, is := r.(*kmsg.ProduceRequest)
		return !is || slices.ContainsFunc(produce.Topics, func(t kmsg.ProduceRequestTopic) bool {
			return t.TopicID == payments
		})
	}
	dead := make(chan struct{})
	l.kafka.Catch(request, wanted, func() (drop bool) {
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

// topicID returns the ID by which a Produce request names topic. A relay's progress goes to a topic
// of its own, which a kill must not catch.
func (l *local) topicID(ctx context.Context, topic string) (id kadm.TopicID, err error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(l.brokers()...))
	if err != nil {
		return id, fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()

	topics, err := kadm.NewClient(client).ListTopics(ctx, topic)
	if err == nil {
		err = topics.Error()
	}
	if err != nil {
		return id, fmt.Errorf("find topic %s: %w", topic, err)
	}

	return topics[topic].ID, nil
}

// catchMax is longer than a relay or consumer rests between two batches under any load.
const catchMax = 10 * time.Second

// forget removes p from the running programs and reports whether it was one of them.
func (l *local) forget(program string, p *process.Process) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.running[program] != p {
		return false
	}

	delete(l.running, program)
	return true
}

func (l *local) failed() <-chan error { return l.ended }

func (l *local) oncepay(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(l.dir, "oncepay"), args...)
	cmd.Env = []string{"DATABASE_URL=" + l.owner()}

	var stderr bytes.Buffer
	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		return nil, said("oncepay "+args[0], err, stderr.Bytes())
	}
	return out, nil
}

// close stops what open started, programs first, in the order in which requests pass through them.
func (l *local) close() {
	for _, program := range programs {
		l.mu.Lock()
		p := l.running[program]
		l.mu.Unlock()
		if p != nil && l.forget(program, p) {
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

func (l *local) url() string           { return "http://" + l.address }
func (l *local) owner() string         { return l.as("postgres") }
func (l *local) as(role string) string { return l.postgres.URL(role, database) }
func (l *local) brokers() []string     { return l.kafka.Brokers() }
func (l *local) batch() int            { return 100 } // small, so that repeats show as such

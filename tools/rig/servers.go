package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/migrations"
)

// Postgres starts a server with the programs' roles and a database with the schema. The caller
// stops it.
func Postgres(
	ctx context.Context, o embedded.PostgresOptions, database string,
) (*embedded.Postgres, error) {
	p, err := embedded.StartPostgres(ctx, o)
	if err != nil {
		return nil, err
	}

	admin := p.URL("postgres", "postgres")
	err = embedded.CreateRoles(ctx, admin)
	if err == nil {
		err = Execute(ctx, admin, `CREATE DATABASE `+database)
	}
	if err == nil {
		_, err = migrations.Up(ctx, p.URL("postgres", database))
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop(context.WithoutCancel(ctx)))
	}

	return p, nil
}

// Broker finds the brokers of KAFKA_BROKERS. Without that it starts a container, if docker is set
// and Docker is there, or a broker in this process. The caller stops it.
func Broker(
	ctx context.Context, getenv func(string) string, docker bool, say func(string, ...any),
) (testenv.Server, error) {
	if brokers := getenv("KAFKA_BROKERS"); brokers != "" {
		s, err := broker(ctx, getenv, "TEST_KAFKA_BROKERS", brokers)
		if err != nil {
			return s, fmt.Errorf("KAFKA_BROKERS=%s: %w", brokers, err)
		}

		s.Name = "Kafka at " + brokers
		return s, nil
	}

	// No Docker, or no image and no network to fetch it.
	if docker {
		s, err := broker(ctx, getenv, "TEST_SERVERS", "docker")
		if err == nil || ctx.Err() != nil {
			return s, err
		}

		say("no container of Kafka, so the broker runs in this process: %s", firstLine(err))
	}
	return broker(ctx, getenv, "", "")
}

// Consumer reads a topic from its beginning as a read_committed reader.
func Consumer(brokers []string, topic string, more ...kgo.Opt) (*kgo.Client, error) {
	client, err := kgo.NewClient(append(more,
		kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}

	return client, nil
}

// broker starts what testenv starts when one variable has that value.
func broker(
	ctx context.Context, getenv func(string) string, name, value string,
) (testenv.Server, error) {
	return testenv.StartBroker(ctx, func(n string) string {
		switch n {
		case name:
			return value
		case "TEST_KAFKA_BROKERS", "TEST_SERVERS":
			return ""
		}

		return getenv(n)
	})
}

// Seed makes a client with accounts as an operator does, by the program oncepay in dir.
func Seed(ctx context.Context, dir, url string, args []string) (traffic.Seed, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "oncepay"), args...)
	cmd.Env = []string{"DATABASE_URL=" + url}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		return traffic.Seed{}, fmt.Errorf("oncepay seed: %w\n%s", err, &stderr)
	}

	return traffic.ReadSeed(out)
}

// Dir makes a temporary directory. As root we run Postgres as an unprivileged user, who must be
// able to read what is in it.
func Dir(name string) (string, error) {
	dir, err := os.MkdirTemp("", "oncepay-"+name+"-")
	if err != nil {
		return "", fmt.Errorf("make a directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("open the directory: %w", err)
	}

	return dir, nil
}

// Connect gives up after some seconds.
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}

	return conn, nil
}

// Execute runs each statement on its own, over one connection.
func Execute(ctx context.Context, url string, statements ...string) error {
	conn, err := Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.60s: %w", firstLine(errors.New(sql)), err)
		}
	}

	return nil
}

// Query returns the one value that a query has, over a connection of its own.
func Query[T any](ctx context.Context, url, sql string, args ...any) (value T, err error) {
	conn, err := Connect(ctx, url)
	if err != nil {
		return value, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		return value, fmt.Errorf("%.60s: %w", sql, err)
	}

	return value, nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return line
}

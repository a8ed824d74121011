package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"

	"github.com/oncepay/oncepay/cmd/demo/local"
)

// compose is the service as `make up` runs it. The demo kills its containers but leaves it running.
type compose struct {
	say        func(format string, args ...any)
	containers map[string]string // ID by program; restarting a container keeps its ID
}

// Open checks that it runs.
func (c *compose) Open(ctx context.Context) error {
	c.containers = map[string]string{}
	for _, name := range local.Programs {
		id, err := c.docker(ctx, "compose", "ps", "--quiet", "--status", "running", name)
		if err != nil {
			return err
		}
		if len(id) == 0 {
			return errors.New(name + " does not run in Docker: `make up` starts it")
		}
		c.containers[name] = strings.TrimSpace(string(id))
	}

	c.say("api, relay, consumer, worker and fakepsp run in Docker; metrics are at")
	c.say("http://127.0.0.1:9090/metrics (api), 9091 (relay), 9092 (consumer)")
	c.say("and 9093 (worker)")
	c.say("requests go to %s", c.URL())
	return nil
}

// Strike kills at a random moment: nothing sits between a container and its broker.
func (c *compose) Strike(ctx context.Context, program string, _ bool) error {
	// Not `docker compose kill`, which takes its time to find the container.
	_, err := c.docker(ctx, "kill", "--signal", "KILL", c.containers[program])
	return err
}

// Start returns when the container is healthy.
func (c *compose) Start(ctx context.Context, name string) error {
	_, err := c.docker(ctx, "compose", "up",
		"--detach", "--wait", "--no-deps", "--no-recreate", name)
	return err
}

// Failed never delivers anything: Docker restarts what ends.
func (c *compose) Failed() <-chan error { return nil }

// Oncepay runs in a container of its own.
func (c *compose) Oncepay(ctx context.Context, args ...string) *exec.Cmd {
	run := append([]string{"compose", "run", "--rm", "-T", "oncepay"}, args...)
	return exec.CommandContext(ctx, "docker", run...)
}

func (c *compose) docker(ctx context.Context, args ...string) ([]byte, error) {
	return output(exec.CommandContext(ctx, "docker", args...))
}

// Close leaves the containers running.
func (c *compose) Close() {}

// The addresses are those of docker-compose.yml.

// PSP returns fakepsp's.
func (c *compose) PSP() string { return "http://127.0.0.1:8090" }

// URL returns the API's.
func (c *compose) URL() string { return "http://127.0.0.1:8080" }

// Owner returns the database's.
func (c *compose) Owner() string {
	return "postgres://postgres:postgres@127.0.0.1:15432/oncepay?sslmode=disable"
}

// Brokers returns Kafka's.
func (c *compose) Brokers() []string { return []string{"127.0.0.1:19092"} }

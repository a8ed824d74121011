package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"
)

// compose is the service as `make up` runs it. The demo kills its containers but leaves it running.
type compose struct {
	say        func(format string, args ...any)
	containers map[string]string // ID by program; restarting a container keeps its ID
}

func (c *compose) open(ctx context.Context) error {
	c.containers = map[string]string{}
	for _, name := range programs {
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
	c.say("requests go to %s", c.url())
	return nil
}

// kill strikes at a random moment: nothing sits between a container and its broker.
func (c *compose) kill(ctx context.Context, v victim) error {
	// Not `docker compose kill`, which takes its time to find the container.
	_, err := c.docker(ctx, "kill", "--signal", "KILL", c.containers[v.program])
	return err
}

func (c *compose) start(ctx context.Context, name string) error {
	_, err := c.docker(ctx, "compose", "up",
		"--detach", "--wait", "--no-deps", "--no-recreate", name)
	return err
}

func (c *compose) failed() <-chan error { return nil } // Docker restarts what ends

func (c *compose) oncepay(ctx context.Context, args ...string) ([]byte, error) {
	return c.docker(ctx, append([]string{"compose", "run", "--rm", "-T", "oncepay"}, args...)...)
}

func (c *compose) docker(ctx context.Context, args ...string) ([]byte, error) {
	return output(exec.CommandContext(ctx, "docker", args...))
}

func (c *compose) close() {}

// The addresses are those of docker-compose.yml.
func (c *compose) psp() string { return "http://127.0.0.1:8090" }
func (c *compose) url() string { return "http://127.0.0.1:8080" }
func (c *compose) owner() string {
	return "postgres://postgres:postgres@127.0.0.1:15432/oncepay?sslmode=disable"
}
func (c *compose) batch() int        { return 2500 } // the default
func (c *compose) brokers() []string { return []string{"127.0.0.1:19092"} }

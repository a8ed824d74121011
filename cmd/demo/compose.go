package main

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
)

// compose is the service as `make up` runs it. The demo kills its containers but leaves it running.
type compose struct {
	say  func(format string, args ...any)
	root string // of the checkout, which holds docker-compose.yml

	containers map[string]string // ID by program; restarting a container keeps its ID
}

func (c *compose) open(ctx context.Context) error {
	// Docker Compose must run in the checkout, wherever in it the demo was started.
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return errors.New("find the checkout: Go is not installed")
	}

	c.root = filepath.Dir(strings.TrimSpace(string(module)))
	out, err := c.docker(ctx, "compose", "ps", "--services", "--status", "running")
	if err != nil {
		return err
	}

	c.containers = map[string]string{}
	for _, program := range programs {
		if !strings.Contains("\n"+string(out), "\n"+program+"\n") {
			return errors.New(program + " does not run in Docker: `make up` starts it")
		}

		id, err := c.docker(ctx, "compose", "ps", "--quiet", program)
		if err != nil {
			return err
		}
		c.containers[program] = strings.TrimSpace(string(id))
	}

	c.say("api, relay and consumer run in Docker; their metrics are at")
	c.say("http://127.0.0.1:9090/metrics (api), 9091 (relay) and 9092 (consumer)")
	c.say("requests go to %s", c.url())
	return nil
}

// kill strikes at a random moment: nothing sits between a container and its broker.
func (c *compose) kill(ctx context.Context, v victim) error {
	// Not `docker compose kill`, which takes its time to find the container.
	_, err := c.docker(ctx, "kill", "--signal", "KILL", c.containers[v.program])
	return err
}

func (c *compose) start(ctx context.Context, program string) error {
	_, err := c.docker(ctx, "compose", "up",
		"--detach", "--wait", "--no-deps", "--no-recreate", program)
	return err
}

func (c *compose) failed() <-chan error { return nil } // Docker restarts what ends

func (c *compose) oncepay(ctx context.Context, args ...string) ([]byte, error) {
	return c.docker(ctx, append([]string{"compose", "run", "--rm", "-T", "oncepay"}, args...)...)
}

func (c *compose) docker(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Dir = c.root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr

	out, err := cmd.Output()
	if err != nil {
		return nil, said("docker "+strings.Join(args[:2], " "), err, stderr.Bytes())
	}
	return out, nil
}

func (c *compose) close() {}

// The addresses are those of docker-compose.yml.
func (c *compose) url() string { return "http://127.0.0.1:8080" }
func (c *compose) owner() string {
	return "postgres://postgres:postgres@127.0.0.1:15432/oncepay?sslmode=disable"
}
func (c *compose) batch() int        { return 2500 } // the default
func (c *compose) brokers() []string { return []string{"127.0.0.1:19092"} }

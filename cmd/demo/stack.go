package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/traffic"
)

// stack is where the service runs: on embedded servers of the demo's own, or in Compose.
type stack interface {
	// open starts everything, or checks that it runs.
	open(ctx context.Context) error
	// kill ends a program as a crash would, in the middle of its work if it can. start runs it
	// again and returns when it serves.
	kill(ctx context.Context, v victim) error
	start(ctx context.Context, program string) error
	// failed delivers the error of a program that ended without being killed.
	failed() <-chan error
	// oncepay runs the command-line program as the schema's owner and returns its output.
	oncepay(ctx context.Context, args ...string) ([]byte, error)
	close()

	url() string   // the API's
	owner() string // the database, as the schema's owner
	brokers() []string
	psp() string // fakepsp's URL
	batch() int  // RELAY_BATCH: a killed relay may have two of them repeated, no more
}

// topicPrefix is TOPIC_PREFIX's default.
const topicPrefix = "oncepay."

// programs are in the order in which requests pass through them. The worker goes on with what a
// request began.
var programs = []string{"api", "worker", "fakepsp", "relay", "consumer"}

// prepare creates clients of one tenant: two for the demo's own requests, all of which are counted,
// and one for the visitor.
func (d *demo) prepare(ctx context.Context) error {
	run := uuid.NewString()[:8] // in Compose the clients of earlier demos still exist

	for name, s := range map[string]*traffic.Seed{
		"shop-" + run: &d.shops[0], "other-shop-" + run: &d.shops[1], "visitor-" + run: &d.visitor,
	} {
		out, err := d.stack.oncepay(ctx, traffic.SeedArgs(name)...)
		if err != nil {
			return err
		}
		if *s, err = traffic.ReadSeed(out); err != nil {
			return err
		}
	}

	d.say("made clients, and %s accounts with 1,000,000.00 USD each", traffic.Accounts)
	return nil
}

// output runs a command and returns what it prints. The error has what it wrote to standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args[:2], " "), err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/internal/traffic"
)

// stack is where the service runs: on embedded servers of the demo's own, or in Compose.
type stack interface {
	// Open starts everything, or checks that it runs.
	Open(ctx context.Context) error
	// Strike kills a program in the middle of its work if it can: a relay with a batch at the broker,
	// landed or dropped. Start runs it again and returns when it serves.
	Strike(ctx context.Context, program string, landed bool) error
	Start(ctx context.Context, program string) error
	// Failed delivers the error of a program that ended without being killed.
	Failed() <-chan error
	// Oncepay is the command-line program, as the schema's owner.
	Oncepay(ctx context.Context, args ...string) *exec.Cmd
	Close()

	URL() string   // the API's
	Owner() string // the database, as the schema's owner
	Brokers() []string
	PSP() string // fakepsp's URL
}

// batch is RELAY_BATCH: a killed relay may have two of them repeated, no more.
func (d *demo) batch() int {
	if d.compose {
		return 2500 // the default
	}
	return local.Batch
}

// prepare creates clients of one tenant: two for the demo's own requests, all of which are counted,
// and one for the visitor.
func (d *demo) prepare(ctx context.Context) error {
	run := uuid.NewString()[:8] // in Compose the clients of earlier demos still exist

	for name, s := range map[string]*traffic.Seed{
		"shop-" + run: &d.shops[0], "other-shop-" + run: &d.shops[1], "visitor-" + run: &d.visitor,
	} {
		out, err := output(d.stack.Oncepay(ctx, traffic.SeedArgs(name)...))
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

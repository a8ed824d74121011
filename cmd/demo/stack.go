package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// stack is where the service runs: on embedded servers of the demo's own, or in Compose.
type stack interface {
	// open starts everything, or finds it running.
	open(ctx context.Context) error
	// kill ends a program as a crash would, if it can in the middle of its work; start runs it again and returns when it serves.
	kill(ctx context.Context, program string) error
	start(ctx context.Context, program string) error
	// failed delivers what became of a program that ended although nobody killed it.
	failed() <-chan error
	// oncepay runs the command-line program as the schema's owner and returns what it printed.
	oncepay(ctx context.Context, args ...string) ([]byte, error)
	close()

	url() string   // the API's
	owner() string // the database, as the schema's owner
	brokers() []string
	batch() int // RELAY_BATCH: a killed relay may send two of them again, no more
}

// topicPrefix is TOPIC_PREFIX's default.
const topicPrefix = "oncepay."

// programs, in the order in which they are killed.
var programs = []string{"api", "relay", "consumer"}

// seed is what oncepay seed prints.
type seed struct {
	ClientID uuid.UUID `json:"client_id"`
	Token    string    `json:"token"`
	Accounts []struct {
		ID uuid.UUID `json:"id"`
	} `json:"accounts"`
}

// Enough accounts that payments seldom wait for each other, and enough money that none runs out by chance.
const (
	accounts = "16"
	funds    = "100000000"
)

// prepare makes clients of one tenant: two for the demo's own requests, all of which are counted, and one for the visitor's.
func (d *demo) prepare(ctx context.Context) error {
	run := uuid.NewString()[:8] // in Compose an earlier demo's client is there still
	for name, s := range map[string]*seed{"shop-" + run: &d.shops[0], "other-shop-" + run: &d.shops[1], "visitor-" + run: &d.visitor} {
		out, err := d.stack.oncepay(ctx, "seed", "-tenant", "demo", "-client", name, "-currency", "USD", "-accounts", accounts, "-fund", funds, "-json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(out, s); err != nil {
			return fmt.Errorf("read what oncepay seed printed: %w", err)
		}
		if s.Token == "" || len(s.Accounts) < 2 {
			return errors.New("oncepay seed printed no token or no accounts")
		}
	}
	d.say("clients and %s accounts with 1,000,000.00 USD each are there", accounts)
	return nil
}

// said is an error of a command, with what it wrote to standard error.
func said(what string, err error, stderr []byte) error {
	return fmt.Errorf("%s: %w\n%s", what, err, bytes.TrimSpace(stderr))
}

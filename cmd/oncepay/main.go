// Command oncepay operates the service by hand: in the database as an operator, through the API as
// a client.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/config"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }

const usage = `Usage: oncepay <command> [flags] [arguments]

As the operator, in the database:
  seed                 create a tenant, a client, a credential and funded accounts, what is missing of them
  tenants list         show all tenants
  tenants create       create a tenant
  clients list         show the clients of a tenant
  clients create       create a client
  credentials list     show the credentials of a client
  credentials create   create a credential; its token is shown this once
  credentials revoke   end a credential
  statement            an account day by day: what the consumer counted beside what the ledger holds
  outbox               what is still to be sent, where each relay stands, and what holds it up

As a client, through the API:
  pay                  make a payment, and repeat it until its outcome is known
  get                  show a payment or an account
  key                  what became of an idempotency key

oncepay <command> -h explains each. All of them know -json: with exit code 0 or 2, standard output is one JSON value; with 1
or 3 it is empty or cut off, and not to be read. Flags may stand before or behind arguments. Amounts are in minor units: 2500
is 25.00 USD. Times are in UTC.

Exit codes:
  0  done
  1  it could not be tried, or the question not be asked: a flag, a variable, the database, a GET without an answer
  2  the service refused; the answer stands
  3  the outcome is unknown, or could not be shown: repeat with the same key

Examples:
  export DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay
  oncepay seed -tenant demo -client shop -currency USD -accounts 2 -fund 100000
  export ONCEPAY_TOKEN=oncepay_…
  oncepay pay -from 0198a6de-… -to 0198a6df-… -amount 2500 -currency USD
  oncepay outbox -json

Environment:
`

const (
	exitDone    = 0
	exitFailed  = 1
	exitRefused = 2
	exitUnknown = 3
)

// run is the whole program. It prints each problem as one line on stderr and returns the exit code.
func run(
	ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer,
) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once

	// If the reader of our output goes away, the write must fail. SIGPIPE would end the program in
	// the middle of a payment, with none of the exit codes above.
	signal.Ignore(syscall.SIGPIPE)

	c := &call{getenv: getenv, stdout: stdout, stderr: stderr}
	err := c.dispatch(ctx, args)

	var refused *refusal
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp): // -h was asked for and answered
		return exitDone
	case errors.Is(err, client.ErrUnknown), errors.Is(err, errNotShown):

		c.complain(err)
		return exitUnknown
	case errors.As(err, &refused):
		c.complain(err)
		return exitRefused
	}
	c.complain(err)
	return exitFailed
}

// call is one run of a command: what the shell gave it.
type call struct {
	getenv         func(string) string
	stdout, stderr io.Writer
}

func (c *call) dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("no command (oncepay -h shows them)")
	}

	name, args := args[0], args[1:]
	// The commands of a group have two words.
	switch name {
	case "tenants", "clients", "credentials":
		if len(args) == 0 {
			return fmt.Errorf("%s what? (oncepay -h shows the commands)", name)
		}
		if !isHelp(args[0]) {
			name, args = name+" "+args[0], args[1:]
		} else {
			name = args[0]
		}
	}

	// Only revoke takes a whole token.
	if name != "credentials revoke" {
		if err := noTokens(args); err != nil {
			return err
		}
	}

	switch name {
	case "seed":
		return c.seed(ctx, args)
	case "tenants list":
		return c.listTenants(ctx, args)
	case "tenants create":
		return c.createTenant(ctx, args)
	case "clients list":
		return c.listClients(ctx, args)
	case "clients create":
		return c.createClient(ctx, args)
	case "credentials list":
		return c.listCredentials(ctx, args)
	case "credentials create":
		return c.createCredential(ctx, args)
	case "credentials revoke":
		return c.revokeCredential(ctx, args)
	case "statement":
		return c.statement(ctx, args)
	case "outbox":
		return c.outbox(ctx, args)
	case "pay":
		return c.pay(ctx, args)
	case "get":
		return c.get(ctx, args)
	case "key":
		return c.key(ctx, args)
	}

	if isHelp(name) {
		_, err := io.WriteString(c.stdout, usage+config.Usage("oncepay"))
		return err
	}

	return fmt.Errorf("unknown command %q (oncepay -h shows them)", name)
}

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// complain writes one line per problem. The driver reports its attempts on several lines, but they
// are one problem.
func (c *call) complain(err error) {
	text := strings.NewReplacer(":\n\t", ": ", "\n\t", "; ").Replace(err.Error())
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintln(c.stderr, "oncepay: "+withoutTokens(printable(line)))
	}
}

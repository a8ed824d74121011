// Command oncepay operates the service by hand: in the database as an operator, through the API as
// a client.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/tenantmove"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }

const about = `Operates the service by hand: in the database as an operator, through the API as a client.

Amounts are integers in minor units: 2500 is 25.00 USD. Times are in UTC. Flags may stand before
or behind arguments. With --json, standard output is one JSON value if the exit code is 0 or 2;
with 1 or 3 it is empty or cut off, and not to be read.

Exit codes:
  0  done
  1  it could not be tried, or the question not be asked: a flag, a variable, the database,
     the API without an answer to a question
  2  the service refused; the answer stands. reconcile: the books differ
  3  the outcome is unknown, or could not be shown: repeat with the same key

Variables:
`

const examples = `  export DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay
  oncepay seed --tenant demo --client shop --currency USD --accounts 2 --fund 100000
  export ONCEPAY_TOKEN=oncepay_…
  oncepay pay --key order-1 --from 0198a6de-… --to 0198a6df-… --amount 2500 --currency USD
  oncepay outbox --json
  source <(oncepay completion bash)`

const (
	exitDone    = 0
	exitFailed  = 1
	exitRefused = 2
	exitUnknown = 3
)

// The groups of commands in -h.
const (
	asOperator = "operator"
	asClient   = "client"
)

// run is the whole program. It prints each problem as one line on stderr and returns the exit code.
func run(
	ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer,
) int {
	// If the reader of our output goes away, the write must fail. SIGPIPE would end the program in
	// the middle of a payment, with none of the exit codes above.
	signal.Ignore(syscall.SIGPIPE)

	root := newRoot(getenv)

	err := noTokens(root, args)
	if err == nil {
		err = program.Execute(ctx, root, args, stdout, stderr)
	}
	if err == nil {
		return exitDone
	}

	program.Complain(stderr, "oncepay", withoutTokens(err))

	// A refusal may come with an unknown outcome: then it is not the last word.
	var refused *refusal
	switch {
	case errors.Is(err, client.ErrUnknown), errors.Is(err, client.ErrProcessing), errors.Is(err, errNotShown):
		return exitUnknown
	case errors.Is(err, tenantmove.ErrRefused):
		return exitRefused
	case errors.As(err, &refused), errors.Is(err, errNotByCard), errors.Is(err, errDiffer):
		return exitRefused
	}
	return exitFailed
}

func newRoot(getenv func(string) string) *cobra.Command {
	root := &cobra.Command{
		Use:     "oncepay",
		Long:    about + config.Usage("oncepay"),
		Example: examples,
	}
	program.JSON(root)

	root.AddGroup(
		&cobra.Group{ID: asOperator, Title: "As the operator, in the database (DATABASE_URL):"},
		&cobra.Group{ID: asClient, Title: "As a client, through the API (ONCEPAY_TOKEN):"},
	)

	// A new command is a method of one of the two, in a file of its own, and a name here.
	o, c := operator{getenv}, caller{getenv}
	root.AddCommand(
		o.seed(),
		group("tenants", "Show, create and move tenants, who own accounts and money",
			o.listTenants(), o.createTenant(), o.moveTenant(), o.letTenantStay()),
		group("clients", "Show and create clients, the programs that call the API",
			o.listClients(), o.createClient()),
		group("credentials", "Show, create and revoke the credentials of a client",
			o.listCredentials(), o.createCredential(), o.revokeCredential()),
		o.statement(), o.archive(),
		o.outbox(), newTop(),
		group("psp", "Show and decide on what the payment service provider (PSP) is asked to do",
			o.listOperations(), o.showOperation(), o.retryOperation(), o.resolveOperation()),
		group("reconcile", "Compare the books of others with ours", o.reconcilePSP()),
		c.pay(), c.capture(), c.cancel(), c.refund(), c.get(), c.key(), c.webhooks(),
	)
	return root
}

// group returns a command that only has commands below it, with their examples.
func group(name, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: name, Short: short, GroupID: asOperator}
	for _, c := range commands {
		g.AddCommand(c)
		g.Example += "\n" + c.Example
	}
	g.Example = g.Example[1:]
	return g
}

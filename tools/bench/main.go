// Command bench measures the service, with the real programs on a real Postgres, and proves what it measured: a rate whose books do not
// balance is no result.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == tutorialName { // as bench relay starts it
		args = []string{tutorialName}
	}
	code := run(ctx, args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

const usage = `Usage: bench intake|relay [flags]

  intake    how many payments a second the API takes, in what time and at what cost: with group commit and without
  relay     how many events a second the relay sends, in what time and at what cost: ours and the one of the tutorials

Examples:
  go run ./tools/bench intake
  go run ./tools/bench intake -h
  go run ./tools/bench relay
  go run ./tools/bench relay -h
`

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := command(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "bench: "+strings.ReplaceAll(err.Error(), "\n", "\nbench: "))
	return 1
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) == 0:
		return errors.New("what is to be measured? there is: intake, relay (bench -h shows more)")
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(stdout, usage)
		return nil
	case args[0] == "intake":
		o, err := parse(args[1:], stdout)
		if err != nil {
			return err
		}
		return intake(ctx, o, stdout)
	case args[0] == "relay":
		o, err := parseRelay(args[1:], stdout)
		if err != nil {
			return err
		}
		return relay(ctx, o, stdout, os.Getenv)
	case args[0] == tutorialName: // not for people
		return tutorialRelay(ctx, os.Getenv, stderr)
	}
	return fmt.Errorf("unknown benchmark %q: there are intake and relay (bench -h shows more)", args[0])
}

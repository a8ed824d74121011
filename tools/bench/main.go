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
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

const usage = `Usage: bench intake [flags]

  intake    how many payments a second the API takes, in what time and at what cost: with group commit and without

Examples:
  go run ./tools/bench intake
  go run ./tools/bench intake -h
`

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := command(ctx, args, stdout)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "bench: "+strings.ReplaceAll(err.Error(), "\n", "\nbench: "))
	return 1
}

func command(ctx context.Context, args []string, stdout io.Writer) error {
	switch {
	case len(args) == 0:
		return errors.New("what is to be measured? there is: intake (bench -h shows more)")
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(stdout, usage)
		return nil
	case args[0] == "intake":
		o, err := parse(args[1:], stdout)
		if err != nil {
			return err
		}
		return intake(ctx, o, stdout)
	}
	return fmt.Errorf("unknown benchmark %q: there is intake (bench -h shows more)", args[0])
}

// Command soak runs the service under load as it is meant to run, with two relays, a synchronous
// standby and a pinned snapshot. It kills the leading relay now and then and, in the middle, kills
// the primary and promotes the standby. Then it counts. A program that ended by itself is a
// failure, too: an operator would have been needed.
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
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

const usage = `Usage: soak [flags]

Starts a Postgres with a synchronous standby, api, consumer and two relays, and sends payments
and parcels. A transaction holds a snapshot all the time. The leading relay gets SIGKILL every
twentieth of the duration; in the middle the primary gets SIGKILL and the standby is promoted.
The programs know both servers, and get no help but that a killed relay is started again.

Then everything must have arrived: all topics are read and compared with the tables and with what
clients were told. The exit code is 1 when anything was lost, doubled, reordered or changed, when
a program ended by itself, or when a fault did not happen.

The broker is that of KAFKA_BROKERS, else one in this process.

Examples:
  go run ./tools/soak
  go run ./tools/soak -for 60s
  KAFKA_BROKERS=localhost:9092 go run ./tools/soak -rate 1000 -exactly-once

Flags:
`

type options struct {
	length      time.Duration
	rate        int
	exactlyOnce bool
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = soak(ctx, o, stdout)
	}

	if err != nil {
		fmt.Fprintln(stderr, "soak: "+strings.ReplaceAll(err.Error(), "\n", "\nsoak: "))
		return 1
	}
	return 0
}

// shortest leaves a killed relay the time to come back before the next fault.
const shortest = time.Minute

func parse(args []string, stdout io.Writer) (o options, err error) {
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.DurationVar(&o.length, "for", 20*time.Minute, "`duration` of the load, at least 1m")
	f.IntVar(&o.rate, "rate", 400, "requests a `second`: 50 to 10000")
	f.BoolVar(&o.exactlyOnce, "exactly-once", false,
		"run the relays with RELAY_DELIVERY=exactly-once: then no event may be repeated")

	err = f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return o, err
	case err != nil:
	case f.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", f.Arg(0))
	case o.length < shortest:
		err = fmt.Errorf("-for must be at least %s", shortest)
	case o.rate < 50 || o.rate > 10_000:
		err = errors.New("-rate must be 50 to 10000")
	}

	if err != nil {
		return o, fmt.Errorf("%w (soak -h shows the flags)", err)
	}
	return o, nil
}

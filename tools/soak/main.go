// Command soak runs the service under load as it is meant to run, with two relays, a synchronous
// standby and a pinned snapshot. It kills the leading relay now and then and, in the middle, kills
// the primary and promotes the standby. Then it counts. A program that ended by itself is a
// failure, too: an operator would have been needed. With psp it is about payments by card.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/oncepay/oncepay/tools/rig"
)

func main() { rig.Main("soak", os.Args[1:], command) }

const usage = `Usage: soak [flags]
       soak psp [flags]   payments by card, and a PSP that fails: soak psp -h

Starts a Postgres with a synchronous standby, api, consumer, worker and two relays, and sends
payments, captures, cancels and refunds. A transaction holds a snapshot all the time. The leading
relay gets SIGKILL every twentieth of the duration; in the middle the primary gets SIGKILL and the
standby is promoted. The programs know both servers, and get no help but that a killed relay is
started again.

Then everything must have arrived: all topics are read and compared with the tables and with what
clients were told. The exit code is 1 when anything was lost, doubled, reordered or changed, when
a program ended by itself, or when a fault did not happen.

The broker is that of KAFKA_BROKERS, else one in this process.

Examples:
  go run ./tools/soak -for 60s
  KAFKA_BROKERS=localhost:9092 go run ./tools/soak -rate 1000 -exactly-once

Flags:
`

type options struct {
	length      time.Duration
	rate        int
	exactlyOnce bool
}

// shortest leaves a killed relay the time to come back before the next fault.
const shortest = time.Minute

func command(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 0 && args[0] == "psp" {
		return pspCommand(ctx, args[1:], stdout)
	}

	var o options
	f := rig.NewFlags("soak")
	f.DurationVar(&o.length, "for", 20*time.Minute, "`duration` of the load, at least 1m")
	f.Int(&o.rate, "rate", 400, 50, 10_000, "requests a `second`")
	f.BoolVar(&o.exactlyOnce, "exactly-once", false,
		"run the relays with RELAY_DELIVERY=exactly-once: then no event may be repeated")

	if err := f.Parse(usage, args, stdout); err != nil {
		return err
	}
	if o.length < shortest {
		return fmt.Errorf("-for must be at least %s", shortest)
	}
	return soak(ctx, o, stdout)
}

// Command bench measures the service, with the real programs on a real Postgres, and proves what it
// measured: a rate whose books do not balance is no result.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oncepay/oncepay/tools/rig"
)

func main() {
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == tutorialName { // as bench relay starts it
		args = []string{tutorialName}
	}
	rig.Main("bench", args, command)
}

const usage = `Usage: bench intake|expiry|psp|relay|hour [flags]

intake sends payments to the real api and compares group commit with BATCH_MAX=1 at its best pool
size. A rate counts if every 201 that was a first answer is one payment and the books balance.

With -contended, intake captures and cancels the same 100 payments from all connections instead, and
fails if anything deadlocks.

expiry lets many authorizations expire in one second beside payments at a fixed rate.

psp charges cards through the real worker at fakepsp, whose calls take -latency: as fast as it goes,
then at 200/s for the wait until the call, then 50/s beside payments between accounts, with the PSP up
and down. A figure counts if every card payment is completed and the PSP's books and ours agree.

relay compares the real relay with that of the tutorials: SELECT … FOR UPDATE SKIP LOCKED LIMIT 100,
produce, UPDATE. A figure counts if no event is missing, or out of order within its aggregate. Kafka
is that of KAFKA_BROKERS, where topics whose names begin with "bench-" are made and deleted, else a
container, else one in this process.

hour sends payments at a fixed -rate to api, and relay sends their events, on a database that has
-stored payments of -accounts accounts and a quarter as many keys. Checkpoints and autovacuum come as
they come. It shows latencies and log for each minute and how the tables grew. -postgres changes the
server's settings, and a low autovacuum_freeze_max_age brings wraparound near. It takes an hour, a
quarter more before and after it, and 3 GB of disk for a million payments.

All start a Postgres, measure by turns what they compare, show the median and the range of the
rounds, and end with a JSON object. Without a result the exit code is 1. The machine should have
nothing else to do.

Examples:
  go run ./tools/bench intake -rounds 5 -seconds 10 -stored 10000000
  go run ./tools/bench intake -rate 2000 -api COMMITTERS=8 -api BATCH_MAX=200
  go run ./tools/bench psp -rounds 3 -charges 20000 -latency 200ms -worker PSP_CONCURRENCY=256
  go run ./tools/bench relay -relay RELAY_BATCH=5000 -many 1000000 -backlog 0
  KAFKA_BROKERS=kafka-1:9092,kafka-2:9092 go run ./tools/bench relay
  go run ./tools/bench hour -minutes 10 -postgres max_wal_size=16GB -postgres wal_compression=lz4

`

func command(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		args = []string{""}
	}

	switch benchmark := args[0]; benchmark {
	case "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	case tutorialName: // not for people
		return tutorialRelay(ctx, os.Getenv, os.Stderr)
	case "intake", "expiry", "psp", "relay", "hour":
		o, err := parse(benchmark, args[1:], stdout)
		switch {
		case err != nil:
			return err
		case benchmark == "intake":
			return intake(ctx, o, stdout)
		case benchmark == "expiry":
			return expiry(ctx, o, stdout)
		case benchmark == "psp":
			return cards(ctx, o, stdout)
		case benchmark == "hour":
			return hour(ctx, o, stdout)
		}

		return relay(ctx, o, stdout)
	default:
		return fmt.Errorf("%q is no benchmark: expected intake, expiry, psp, relay or hour (bench -h shows more)", benchmark)
	}
}

// options are the flags of all benchmarks.
type options struct {
	seconds, rounds int
	smoke           bool
	variables       []string // further ones of api or relay

	// intake and expiry
	connections, accounts, rate, stored, holds int
	contended                                  bool

	// hour
	minutes          int
	postgresSettings []string
	svg              string

	// psp
	charges         int
	latency         time.Duration
	workerVariables []string

	// relay, in events
	few, many, tutorial, backlog int
	kfake                        bool
}

func (o options) window() time.Duration { return time.Duration(o.seconds) * time.Second }

// reserved are variables that a benchmark sets itself.
var reserved = []string{
	"DATABASE_URL", "DATABASE_READ_URL", "DATABASE_POOL", "HTTP_ADDR", "ADMIN_ADDR", "LOG_LEVEL",
	"LOG_FORMAT", "KAFKA_BROKERS", "TOPIC_PREFIX", "RELAY_NAME", "RELAY_DELIVERY", "WORKER_PARTS",
	"PSP_URL", "PSP_API_KEY",
}

func parse(benchmark string, args []string, stdout io.Writer) (o options, err error) {
	f := rig.NewFlags("bench " + benchmark)
	rounds, seconds, accounts := 3, 4, 10_000
	switch benchmark {
	case "expiry":
		rounds, seconds = 1, 10
	case "psp":
		rounds, seconds = 5, 10
	case "hour":
		accounts = 1_000_000 // by SQL, not by the API
	}
	if benchmark != "hour" {
		f.Int(&o.rounds, "rounds", rounds, 1, 50, "`number` of rounds")
	}
	if benchmark != "psp" && benchmark != "hour" {
		f.BoolVar(&o.smoke, "smoke", false, "half a minute; fails only if something is broken")
	}
	variable := "relay"
	if benchmark != "relay" {
		variable = "api"
		f.Int(&o.connections, "connections", 256, 1, 1000, "`number` of connections")
		f.Int(&o.accounts, "accounts", accounts, 2, accounts, "`number` of accounts that pay each other")
	}
	if benchmark != "relay" && benchmark != "hour" {
		f.Int(&o.seconds, "seconds", seconds, 1, 600, "`length` of each measurement")
	}
	variables(f, variable, &o.variables)
	switch benchmark {
	case "expiry":
		f.Int(&o.rate, "rate", 2000, 1, 100_000, "`payments` a second beside it")
		f.Int(&o.holds, "holds", 100_000, 1, 1_000_000, "`authorizations` that expire in one second")
	case "psp":
		f.Int(&o.rate, "rate", 500, 1, 100_000, "`payments` a second between accounts")
		f.Int(&o.charges, "charges", 5000, 100, 1_000_000, "card `payments` sent as fast as it goes")
		f.DurationVar(&o.latency, "latency", 50*time.Millisecond, "`length` of a call of the PSP")
		variables(f, "worker", &o.workerVariables)
	case "hour":
		f.Int(&o.minutes, "minutes", 60, 1, 1440, "`length` of the measurement")
		f.Int(&o.rate, "rate", 2000, 1, 100_000, "`payments` a second")
		f.Int(&o.stored, "stored", 20_000_000, 2, 100_000_000, "`number` of payments stored before, at least one for each account")
		f.StringVar(&o.svg, "svg", "", "also draw the minutes into this `file`")
		f.Func("postgres", "`NAME=VALUE`, a setting of the server; repeat it for more", func(s string) error {
			name, _, ok := strings.Cut(s, "=")
			if !ok || name == "" {
				return errors.New("expected NAME=VALUE")
			}

			o.postgresSettings = append(o.postgresSettings, s)
			return nil
		})
	case "intake":
		f.BoolVar(&o.contended, "contended", false, "capture and cancel the same 100 payments instead")
		f.Int(&o.rate, "rate", 0, 0, 100_000, "`requests` a second of the open loop, 0 = half of what BATCH_MAX=1 reaches")
		f.Int(&o.stored, "stored", 0, 0, 100_000_000, "also measure with this `number` of keys and payments stored: takes minutes, and 1.5 GB a million")
	default:
		f.Int(&o.seconds, "seconds", 5, 1, 600, "`length` of each measurement with traffic")
		f.Int(&o.few, "few", 50_000, 1000, 5_000_000, "`events` of the small drain")
		f.Int(&o.many, "many", 500_000, 0, 5_000_000, "`events` of the large drain, more than -few; 0 = none")
		f.Int(&o.tutorial, "tutorial", 500_000, 1000, 5_000_000, "most `events` that the tutorial relay drains")
		f.Int(&o.backlog, "backlog", 1_000_000, 0, 20_000_000, "`events` that wait when memory is measured, more than -many; 0 = none")
		f.BoolVar(&o.kfake, "kfake", false, "use the broker inside this process, whatever else there is")
	}

	if err := f.Parse(usage, args, stdout); err != nil {
		return o, err
	}

	if o.many != 0 && o.many <= o.few || o.backlog != 0 && o.backlog <= max(o.few, o.many) {
		return o, errors.New("each of -few, -many and -backlog must be more than the one before, or 0")
	}

	if o.stored < o.accounts && benchmark == "hour" {
		return o, errors.New("-stored must be -accounts or more: each account is funded by a payment")
	}
	o.seconds = max(o.seconds, 60*o.minutes)

	if o.smoke {
		f.Visit(func(f *flag.Flag) {
			if !slices.Contains([]string{"smoke", "kfake", variable}, f.Name) {
				err = fmt.Errorf("-smoke decides about -%s: leave one of them out", f.Name)
			}
		})
		o.accounts, o.seconds, o.rounds = 1000, 2, 2
		o.few, o.many, o.tutorial, o.backlog, o.kfake = 20_000, 0, 5000, 0, true
		if benchmark == "relay" {
			o.seconds, o.rounds = 1, 1
		}
	}

	return o, err
}

// variables adds a flag for variables of a program, which is named like the program.
func variables(f rig.Flags, program string, list *[]string) {
	f.Func(program, "`NAME=VALUE`, a variable of it in every phase; repeat it for more", func(s string) error {
		name, _, ok := strings.Cut(s, "=")
		if !ok || name == "" || strings.ToUpper(name) != name {
			return errors.New("expected NAME=VALUE")
		}

		if slices.Contains(reserved, name) {
			return errors.New("the benchmark sets it itself")
		}

		*list = append(*list, s)
		return nil
	})
}

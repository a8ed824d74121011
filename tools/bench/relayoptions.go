package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	bothDeliveries = "both"
	atLeastOnce    = "at-least-once"
	exactlyOnce    = "exactly-once"
)

// relayOptions are the flags of relay.
type relayOptions struct {
	few, many, backlog int // events
	tutorialEvents     int
	seconds, rounds    int
	delivery           string
	variables          []string // further ones of our relay
	kfake, smoke       bool
}

// relaysOwn are variables of the relay that the benchmark sets by itself.
var relaysOwn = []string{"DATABASE_URL", "KAFKA_BROKERS", "TOPIC_PREFIX", "RELAY_NAME", "RELAY_DELIVERY", "ADMIN_ADDR", "LOG_LEVEL", "LOG_FORMAT"}

const relayUsage = `Usage: bench relay [flags]

Starts a Postgres of its own and the real relay, and compares it with the relay of the tutorials: SELECT … FOR UPDATE SKIP LOCKED LIMIT 100,
produce, UPDATE, at once as long as there is more, every 500 ms when there is not. Measured are a backlog that is sent, the time from commit
to consumer at 500 and 5,000 events a second, with and without a writing transaction that stays open, what it costs, and what an idle relay
costs. Rounds alternate between the relays; what is shown is the median and the range of the rounds. Every topic is read from its beginning before its
figure counts: with an event missing, or out of order within its aggregate, there is no result and the exit code is 1.

Kafka is that of KAFKA_BROKERS, else a container of apache/kafka, else one inside this process; the output says which. On a given one, topics whose names
begin with "bench-" are made and deleted. It needs a machine with nothing else to do. The last line is a JSON object.

Examples:
  go run ./tools/bench relay
  go run ./tools/bench relay -smoke
  go run ./tools/bench relay -rounds 5 -seconds 10
  go run ./tools/bench relay -delivery at-least-once -relay RELAY_BATCH=5000 -many 1000000 -backlog 0
  KAFKA_BROKERS=kafka-1:9092,kafka-2:9092 go run ./tools/bench relay

Flags:
`

// parseRelay returns flag.ErrHelp after it has shown the help.
func parseRelay(args []string, stdout io.Writer) (o relayOptions, err error) {
	f := flag.NewFlagSet("relay", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&o.few, "few", 50_000, "`events` of the small drain: 1000 to 5000000")
	f.IntVar(&o.many, "many", 500_000, "`events` of the large drain, more than -few and up to 5000000; 0 = no such drain")
	f.IntVar(&o.tutorialEvents, "tutorial", 500_000, "most `events` that the tutorial relay drains: 1000 to 5000000")
	f.IntVar(&o.backlog, "backlog", 1_000_000, "`events` that wait when memory is measured, more than -many and up to 20000000; 0 = do not")
	f.IntVar(&o.seconds, "seconds", 5, "`length` of each measurement with traffic, and how long the transaction stays open: 1 to 600")
	f.IntVar(&o.rounds, "rounds", 3, "`number` of rounds: 1 to 50")
	f.StringVar(&o.delivery, "delivery", bothDeliveries, "RELAY_DELIVERY: at-least-once, exactly-once, or both = at-least-once, and drains exactly-once as well")
	f.BoolVar(&o.kfake, "kfake", false, "use the broker inside this process, whatever else there is")
	f.BoolVar(&o.smoke, "smoke", false, "30 s, with the broker inside this process; fails only if events are missing, out of order or doubled")
	f.Func("relay", "`NAME=VALUE`, a variable of our relay in every phase; repeat it for more", func(s string) error {
		if err := checkVariable(s, relaysOwn); err != nil {
			return err
		}
		o.variables = append(o.variables, s)
		return nil
	})
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, relayUsage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return o, err
	} else if err != nil {
		return o, fmt.Errorf("%w (bench relay -h shows the flags)", err)
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q (bench relay -h shows the flags)", f.Arg(0))
	}
	if err := o.check(); err != nil {
		return o, fmt.Errorf("%w (bench relay -h shows the flags)", err)
	}
	if o.smoke {
		decided := []string{"few", "many", "tutorial", "backlog", "seconds", "rounds"}
		f.Visit(func(f *flag.Flag) {
			if slices.Contains(decided, f.Name) && err == nil {
				err = fmt.Errorf("-smoke decides by itself what -%s asks for: leave one of them out", f.Name)
			}
		})
		o.kfake = true
		o.few, o.many, o.tutorialEvents, o.backlog, o.seconds, o.rounds = 20_000, 0, 5000, 0, 1, 1
	}
	return o, err
}

func (o relayOptions) check() error {
	switch {
	case o.few < 1000 || o.few > 5_000_000:
		return errors.New("-few must be 1000 to 5000000")
	case o.many != 0 && (o.many <= o.few || o.many > 5_000_000):
		return errors.New("-many must be more than -few and up to 5000000, or 0")
	case o.tutorialEvents < 1000 || o.tutorialEvents > 5_000_000:
		return errors.New("-tutorial must be 1000 to 5000000")
	case o.backlog != 0 && (o.backlog <= max(o.few, o.many) || o.backlog > 20_000_000):
		return errors.New("-backlog must be more than -few and -many and up to 20000000, or 0")
	case o.seconds < 1 || o.seconds > 600:
		return errors.New("-seconds must be 1 to 600")
	case o.rounds < 1 || o.rounds > 50:
		return errors.New("-rounds must be 1 to 50")
	case !slices.Contains([]string{bothDeliveries, atLeastOnce, exactlyOnce}, o.delivery):
		return errors.New("-delivery must be both, at-least-once or exactly-once")
	}
	return nil
}

// checkVariable refuses what is no NAME=VALUE, and names that the benchmark decides about.
func checkVariable(s string, decided []string) error {
	name, _, ok := strings.Cut(s, "=")
	if !ok || name == "" || strings.ToUpper(name) != name {
		return errors.New("it must be NAME=VALUE")
	}
	if slices.Contains(decided, name) {
		return errors.New("the benchmark sets it by itself")
	}
	return nil
}

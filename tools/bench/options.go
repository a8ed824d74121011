package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// options are the flags of intake.
type options struct {
	connections int
	accounts    int
	hot         bool
	duplicates  float64
	rate        float64 // of the open loop; 0: half of what is reached with a transaction for each request
	seconds     int
	warmup      int
	rounds      int
	stored      int
	smoke       bool
	profile     string
	databaseURL string
	api         []string // further variables of the API

	pools []int // sizes that are tried with BATCH_MAX=1
}

// ours are variables of the API that flags decide, or that must be as they are: where it listens is read from its log.
var ours = []string{"DATABASE_URL", "DATABASE_READ_URL", "HTTP_ADDR", "ADMIN_ADDR", "DATABASE_POOL", "LOG_LEVEL", "LOG_FORMAT"}

const intakeUsage = `Usage: bench intake [flags]

Starts a Postgres of its own and the real api, sends payments, and compares group commit with BATCH_MAX=1 at the pool size that is
best for it. Rounds alternate between the two; what is shown is the median and the range of the rounds. After every measurement the
ledger is checked: each 201 that was a first answer is one payment, with balanced entries and right balances. If not, or if any answer was
not the one expected, there is no result and the exit code is 1.

It needs a machine with nothing else to do: the load it makes shares the processors. The last line is a JSON object.

Examples:
  go run ./tools/bench intake
  go run ./tools/bench intake -smoke
  go run ./tools/bench intake -rounds 5 -seconds 10 -stored 10000000
  go run ./tools/bench intake -rate 2000 -duplicates 0.05 -api COMMITTERS=8 -api BATCH_MAX=200
  go run ./tools/bench intake -database-url postgres://postgres@db.example.com:5432/bench

Flags:
`

// parse returns flag.ErrHelp after it has shown the help.
func parse(args []string, stdout io.Writer) (o options, err error) {
	o.pools = []int{4, 8, 16, 32, 64}
	f := flag.NewFlagSet("intake", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.IntVar(&o.connections, "connections", 256, "`number` of connections of the closed loop, and at most of the open one: 1 to 1000")
	f.IntVar(&o.accounts, "accounts", 10_000, "`number` of accounts that pay each other: 2 to 10000")
	f.BoolVar(&o.hot, "hot", false, "every payment goes to the same account, in every phase")
	f.Float64Var(&o.duplicates, "duplicates", 0, "`share` of requests that repeat one that was answered: 0 to 0.9")
	f.Float64Var(&o.rate, "rate", 0, "requests a second of the open loop: 1 to 100000; 0 = half of what BATCH_MAX=1 reaches")
	f.IntVar(&o.seconds, "seconds", 4, "`length` of each measurement: 1 to 600")
	f.IntVar(&o.warmup, "warmup", 1, "`seconds` before each measurement: 0 to 60")
	f.IntVar(&o.rounds, "rounds", 3, "`number` of rounds: 1 to 50")
	f.IntVar(&o.stored, "stored", 0, "also measure with this `number` of keys and payments in the database: 1000 to 100000000; takes minutes and 1.5 GB a million; 0 = do not")
	f.BoolVar(&o.smoke, "smoke", false, "20 s, closed loop only; fails only if group commit is not even twice as fast")
	f.StringVar(&o.profile, "profile", "", "`file` for a CPU profile of the API in the closed loop, for go tool pprof")
	f.StringVar(&o.databaseURL, "database-url", "", "`URL` of a database with our schema and nobody else's payments, as its owner; it is filled. Default: a server of its own")
	f.Func("api", "`NAME=VALUE`, a variable of the API in every phase; repeat it for more", func(s string) error {
		if err := checkVariable(s, ours); err != nil {
			return err
		}
		o.api = append(o.api, s)
		return nil
	})
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, intakeUsage)
		f.SetOutput(stdout)
		f.PrintDefaults()
		return o, err
	} else if err != nil {
		return o, fmt.Errorf("%w (bench intake -h shows the flags)", err)
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q (bench intake -h shows the flags)", f.Arg(0))
	}
	if err := o.check(); err != nil {
		return o, fmt.Errorf("%w (bench intake -h shows the flags)", err)
	}
	if o.smoke {
		decided := []string{"accounts", "hot", "duplicates", "rate", "seconds", "warmup", "rounds", "stored", "connections", "profile"}
		f.Visit(func(f *flag.Flag) {
			if slices.Contains(decided, f.Name) && err == nil {
				err = fmt.Errorf("-smoke decides by itself what -%s asks for: leave one of them out", f.Name)
			}
		})
		o.accounts, o.seconds, o.rounds, o.pools = 1000, 2, 2, []int{16}
	}
	return o, err
}

func (o options) check() error {
	_, urlErr := pgx.ParseConfig(o.databaseURL)
	switch {
	case o.connections < 1 || o.connections > 1000:
		return errors.New("-connections must be 1 to 1000")
	case o.accounts < 2 || o.accounts > 10_000:
		return errors.New("-accounts must be 2 to 10000")
	case !(o.duplicates >= 0 && o.duplicates <= 0.9): // NaN is neither
		return errors.New("-duplicates must be 0 to 0.9")
	case o.rate != 0 && !(o.rate >= 1 && o.rate <= 100_000):
		return errors.New("-rate must be 1 to 100000, or 0")
	case o.seconds < 1 || o.seconds > 600:
		return errors.New("-seconds must be 1 to 600")
	case o.warmup < 0 || o.warmup > 60:
		return errors.New("-warmup must be 0 to 60")
	case o.rounds < 1 || o.rounds > 50:
		return errors.New("-rounds must be 1 to 50")
	case o.stored != 0 && (o.stored < 1000 || o.stored > 100_000_000):
		return errors.New("-stored must be 1000 to 100000000, or 0")
	case o.stored != 0 && o.databaseURL != "":
		return errors.New("-stored needs a server of its own: leave out -database-url")
	case o.databaseURL != "" && urlErr != nil:
		return errors.New("-database-url must be like postgres://postgres:secret@localhost:5432/bench") // without the value: it may hold a password
	}
	return nil
}

func (o options) window() time.Duration { return time.Duration(o.seconds) * time.Second }
func (o options) warm() time.Duration   { return time.Duration(o.warmup) * time.Second }

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

const usage = `Usage: demo [flags]

Runs Postgres, Kafka, api, relay, consumer, worker and fakepsp, a PSP that
charges nobody, on free ports of this machine and sends them requests: payments
from accounts and by card, captures, cancels and refunds. Ctrl-C stops the requests, waits until every event has arrived, counts what was lost or
doubled, and leaves nothing behind; a second Ctrl-C does not wait. Postgres is
taken from this machine or downloaded once.

The first line is the address of a page, for this machine only, that shows what
happens and has buttons to break it. Where there is a desktop it opens by itself.

With -check it needs no terminal: 28 s of requests as fast as they are answered;
SIGKILL to api, relay, consumer, worker, fakepsp and relay, each with at least
50 requests in flight; a PSP that loses one reply in twenty; the same count; and as the last line a JSON object. One
relay dies while the broker drops its batch, one after the broker has taken it.
The exit code is 1 if anything is wrong, if no killed relay's events were sent
again, or if no payment was captured, canceled, expired or refunded.

Examples:
  go run ./cmd/demo
  go run ./cmd/demo -kill
  go run ./cmd/demo -rate 500 -for 30s
  go run ./cmd/demo -check
  docker compose up --build --detach --wait && go run ./cmd/demo -compose -check

Flags:
`

// options are the flags.
type options struct {
	rate    int
	length  time.Duration
	kill    bool
	check   bool
	compose bool
	page    string // where the page is served; empty: nowhere
	browser bool
}

// parse reads the flags. done means that help was printed and nothing is left to do.
func parse(args []string, stdout io.Writer) (o options, done bool, err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&o.rate, "rate", 50,
		"requests a `second`, up to 10000; 0 = as fast as they are\nanswered, the default with -kill")
	flags.DurationVar(&o.length, "for", 0,
		"`duration` after which it stops by itself; 0 = at Ctrl-C")
	flags.BoolVar(&o.kill, "kill", false,
		"every 4 s SIGKILL the next of api, relay, consumer, worker,\nfakepsp and relay, and start it again; the PSP loses replies")
	flags.BoolVar(&o.check, "check", false,
		"28 s at full speed, six kills, JSON as the last line")
	flags.BoolVar(&o.compose, "compose", false,
		"use what make up runs in Docker, instead of servers of its own")
	flags.StringVar(&o.page, "page", "127.0.0.1:0",
		"`address` of this machine where the page is served, port 0 =\na free one; empty = no page, as with -check and -compose")
	flags.BoolVar(&o.browser, "browser", true,
		"open the page where there is a desktop")

	set := map[string]bool{}
	err = flags.Parse(args)
	flags.Visit(func(f *flag.Flag) { set[f.Name] = true })

	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return o, true, nil
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	case o.rate < 0 || o.rate > 10_000:
		err = errors.New("-rate must be 0 to 10000")
	case o.length < 0:
		err = errors.New("-for must not be negative")
	case o.check && (set["rate"] || set["for"] || set["kill"]):
		err = errors.New("-check sets rate, duration and kills: leave out -rate, -for and -kill")
	case set["page"] && o.page != "" && (o.check || o.compose):
		err = errors.New("-page breaks programs of the demo's own: leave out -check and -compose")
	}

	if err != nil {
		return o, false, fmt.Errorf("%w (demo -h shows the flags)", err)
	}

	if o.check || o.compose {
		o.page = ""
	}

	o.kill = o.kill || o.check
	if o.kill && !set["rate"] {
		o.rate = 0 // keep every program busy, so that a kill interrupts something
	}
	return o, false, nil
}

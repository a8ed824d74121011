package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/postgres"
)

const deadLettersHelp = `relay dead-letters shows the events that Kafka refused, and decides on them. Their aggregates are parked meanwhile.

Usage:
  relay dead-letters list [-all] [-json]       one line for each refused event that waits; -all: those of the past, too
  relay dead-letters show ID                   what is known of one, as JSON, but for its payload
  relay dead-letters show -payload ID          its payload, byte for byte; it may hold what not everybody is to see
  relay dead-letters retry ID                  sends it again, and then what waits behind it
  relay dead-letters skip -reason "…" ID       gives it up, and sends what waits behind it; the reason is kept
  relay dead-letters -h                        this text

The variables are the relay's; DATABASE_URL and RELAY_NAME are used. The leader acts within a second.

Examples:
  relay dead-letters list
  relay dead-letters retry 1234
  relay dead-letters skip -reason "sent by hand, ticket 4711" 1234
`

// letterCommand is a command line of relay dead-letters.
type letterCommand struct {
	name               string // list, show, retry or skip
	help               bool
	all, json, payload bool
	reason             string
	id                 int64 // list: none
}

// parseLetterCommand says what is wrong with a command line before anything is asked of a database.
func parseLetterCommand(args []string) (c letterCommand, err error) {
	if len(args) == 0 || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		return letterCommand{help: true}, nil
	}
	c.name = args[0]
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	switch c.name {
	case "list":
		flags.BoolVar(&c.all, "all", false, "")
		flags.BoolVar(&c.json, "json", false, "")
	case "show":
		flags.BoolVar(&c.payload, "payload", false, "")
	case "skip":
		flags.StringVar(&c.reason, "reason", "", "")
	case "retry":
	default:
		return c, fmt.Errorf("unknown argument %q: see relay dead-letters -h", c.name)
	}
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return letterCommand{help: true}, nil
	case err != nil:
		return c, fmt.Errorf("%w: see relay dead-letters -h", err)
	}
	switch given := flags.Args(); {
	case c.name == "list" && len(given) > 0:
		return c, fmt.Errorf("unknown argument %q: see relay dead-letters -h", given[0])
	case c.name == "list":
	case len(given) != 1:
		return c, fmt.Errorf("%s takes the ID of one dead letter, behind its flags: see relay dead-letters -h", c.name)
	default:
		if c.id, err = strconv.ParseInt(given[0], 10, 64); err != nil || c.id < 1 {
			return c, errors.New("an ID is a number, as relay dead-letters list shows it")
		}
	}
	if c.name == "skip" && strings.TrimSpace(c.reason) == "" {
		return c, errors.New("skip needs -reason: it is kept with the event")
	}
	return c, nil
}

// deadLetters runs relay dead-letters.
func deadLetters(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	c, err := parseLetterCommand(args)
	if err != nil {
		return err
	}
	if c.help {
		_, err := fmt.Fprint(stdout, deadLettersHelp)
		return err
	}
	cfg, err := config.LoadRelay(getenv)
	if err != nil {
		return err
	}
	postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)
	pool, err := postgres.Open(ctx, cfg.DatabaseURL, "relay", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer postgres.Close(pool)
	switch c.name {
	case "list":
		var letters []outbox.DeadLetter
		if letters, err = outbox.DeadLetters(ctx, pool, cfg.Name, c.all); err == nil {
			err = list(stdout, letters, c)
		}
	case "show":
		err = show(ctx, pool, cfg.Name, c, stdout)
	case "retry":
		err = outbox.RetryDeadLetter(ctx, pool, cfg.Name, c.id)
	case "skip":
		err = outbox.SkipDeadLetter(ctx, pool, cfg.Name, c.id, c.reason)
	}
	return err
}

func show(ctx context.Context, pool *pgxpool.Pool, relay string, c letterCommand, stdout io.Writer) error {
	var letter outbox.DeadLetter
	var payload []byte
	var err error
	if c.payload {
		payload, err = outbox.DeadLetterPayload(ctx, pool, relay, c.id)
	} else {
		letter, err = outbox.FindDeadLetter(ctx, pool, relay, c.id)
	}
	switch {
	case errors.Is(err, outbox.ErrNoDeadLetter):
		return errors.New("no event with this id was refused")
	case err != nil:
		return err
	case c.payload:
		_, err = stdout.Write(payload)
		return err
	}
	return asJSON(stdout, letter)
}

func list(stdout io.Writer, letters []outbox.DeadLetter, c letterCommand) error {
	switch {
	case c.json:
		return asJSON(stdout, letters)
	case len(letters) == 0 && c.all:
		_, err := fmt.Fprintln(stdout, "no event was refused")
		return err
	case len(letters) == 0:
		_, err := fmt.Fprintln(stdout, "no refused event waits")
		return err
	}
	for _, l := range letters {
		if _, err := fmt.Fprintf(stdout, "%d %s %s/%s %s: %s; %d of its aggregate wait\n", l.ID, l.State, l.AggregateType, l.AggregateID, l.Type, l.Refusal, l.Waiting); err != nil {
			return err
		}
	}
	return nil
}

func asJSON(stdout io.Writer, v any) error {
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

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

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/postgres"
)

const deadLettersHelp = `relay dead-letters shows the events that Kafka refused, and decides on them. Their aggregates are parked meanwhile.

Usage:
  relay dead-letters list [-all]               one line for each refused event that waits; -all: those of the past, too
  relay dead-letters show ID                   all that is known of one, as JSON
  relay dead-letters retry ID                  sends it again, and then what waits behind it
  relay dead-letters skip -reason "…" ID       gives it up, and sends what waits behind it; the reason is kept

The variables are the relay's; DATABASE_URL and RELAY_NAME are used. The leader acts within a second.

Example:
  relay dead-letters skip -reason "sent by hand, ticket 4711" 1234
`

// deadLetters runs relay dead-letters.
func deadLetters(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	if len(args) == 0 || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		_, err := fmt.Fprint(stdout, deadLettersHelp)
		return err
	}
	command := args[0]
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	all, reason := new(bool), new(string)
	switch command {
	case "list":
		all = flags.Bool("all", false, "")
	case "skip":
		reason = flags.String("reason", "", "")
	case "show", "retry":
	default:
		return fmt.Errorf("unknown argument %q: see relay dead-letters -h", command)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w: see relay dead-letters -h", err)
	}
	var id int64
	switch given := flags.Args(); {
	case command == "list" && len(given) > 0:
		return fmt.Errorf("unknown argument %q: see relay dead-letters -h", given[0])
	case command == "list":
	case len(given) != 1:
		return fmt.Errorf("%s takes the ID of one dead letter, behind its flags: see relay dead-letters -h", command)
	default:
		var err error
		if id, err = strconv.ParseInt(given[0], 10, 64); err != nil || id < 1 {
			return errors.New("an ID is a number, as relay dead-letters list shows it")
		}
	}
	if command == "skip" && strings.TrimSpace(*reason) == "" {
		return errors.New("skip needs -reason: it is kept with the event")
	}
	cfg, err := config.LoadRelay(getenv)
	if err != nil {
		return err
	}
	pool, err := postgres.Open(ctx, cfg.DatabaseURL, "relay", 1, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer postgres.Close(pool)
	switch command {
	case "retry":
		return outbox.RetryDeadLetter(ctx, pool, cfg.Name, id)
	case "skip":
		return outbox.SkipDeadLetter(ctx, pool, cfg.Name, id, *reason)
	}
	letters, err := outbox.DeadLetters(ctx, pool, cfg.Name, *all || command == "show")
	if err != nil {
		return err
	}
	if command == "list" {
		return list(stdout, letters)
	}
	for _, l := range letters {
		if l.ID == id {
			e := json.NewEncoder(stdout)
			e.SetIndent("", "  ")
			return e.Encode(l)
		}
	}
	return outbox.ErrNoDeadLetter
}

func list(stdout io.Writer, letters []outbox.DeadLetter) error {
	if len(letters) == 0 {
		_, err := fmt.Fprintln(stdout, "no event was refused")
		return err
	}
	for _, l := range letters {
		if _, err := fmt.Fprintf(stdout, "%d %s %s/%s %s: %s; %d of its aggregate wait\n", l.ID, l.State, l.AggregateType, l.AggregateID, l.Type, l.Refusal, l.Waiting); err != nil {
			return err
		}
	}
	return nil
}

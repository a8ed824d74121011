package program

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// DeadLetters is the command dead-letters of a program: list, show, retry and skip.
type DeadLetters struct {
	Program   string // its name
	Help      string
	None      string // printed by list when there are none at all
	NoneWaits string // printed by list when none waits for a decision

	// Open returns the letters of the configured database, and a function that closes them.
	Open func(ctx context.Context, getenv func(string) string) (Letters, func(), error)
}

// Letters are the dead letters of one program. An unknown id is an error that says so.
type Letters interface {
	// List returns the letters for JSON, and one line of text for each.
	List(ctx context.Context, all bool) (letters any, lines []string, err error)
	Show(ctx context.Context, id int64) (letter any, err error)
	Payload(ctx context.Context, id int64) ([]byte, error)
	Retry(ctx context.Context, id int64) error
	Skip(ctx context.Context, id int64, reason string) error
}

// letterCommand is a command line of dead-letters.
type letterCommand struct {
	name               string // list, show, retry or skip
	help               bool
	all, json, payload bool
	reason             string
	id                 int64 // not for list
}

// Run implements Command.Run.
func (d DeadLetters) Run(
	ctx context.Context, args []string, getenv func(string) string, stdout io.Writer,
) error {
	c, err := d.parse(args)
	if err != nil {
		return err
	}
	if c.help {
		_, err := fmt.Fprint(stdout, d.Help)
		return err
	}

	// Everything wrong with the command line has been said: connect.
	letters, closeAll, err := d.Open(ctx, getenv)
	if err != nil {
		return err
	}
	defer closeAll()

	switch c.name {
	case "list":
		return d.list(ctx, letters, c, stdout)
	case "show":
		return show(ctx, letters, c, stdout)
	case "retry":
		return letters.Retry(ctx, c.id)
	default:
		return letters.Skip(ctx, c.id, c.reason)
	}
}

// parse checks the command line, before any connection to the database.
func (d DeadLetters) parse(args []string) (c letterCommand, err error) {
	if len(args) == 0 || args[0] == "-h" || args[0] == "-help" || args[0] == "--help" {
		return letterCommand{help: true}, nil
	}

	c.name = args[0]
	help := d.Program + " dead-letters -h"
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
		return c, fmt.Errorf("unknown argument %q: see %s", c.name, help)
	}

	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return letterCommand{help: true}, nil
	case err != nil:
		return c, fmt.Errorf("%w: see %s", err, help)
	}

	// Only list is about all of them; the others decide on one.
	switch given := flags.Args(); {
	case c.name == "list" && len(given) > 0:
		return c, fmt.Errorf("unknown argument %q: see %s", given[0], help)
	case c.name == "list":
	case len(given) != 1:
		return c, fmt.Errorf("%s takes the ID of one dead letter, after its flags: see %s", c.name, help)
	default:
		if c.id, err = strconv.ParseInt(given[0], 10, 64); err != nil || c.id < 1 {
			return c, fmt.Errorf("the ID must be a number shown by %s dead-letters list", d.Program)
		}
	}

	if c.name == "skip" && strings.TrimSpace(c.reason) == "" {
		return c, errors.New("skip needs -reason: it is kept with the event")
	}
	return c, nil
}

func (d DeadLetters) list(
	ctx context.Context, letters Letters, c letterCommand, stdout io.Writer,
) error {
	all, lines, err := letters.List(ctx, c.all)
	switch {
	case err != nil:
		return err
	case c.json:
		return asJSON(stdout, all)
	case len(lines) == 0 && c.all:
		lines = []string{d.None}
	case len(lines) == 0:
		lines = []string{d.NoneWaits}
	}

	_, err = fmt.Fprintln(stdout, strings.Join(lines, "\n"))
	return err
}

func show(ctx context.Context, letters Letters, c letterCommand, stdout io.Writer) error {
	if c.payload {
		payload, err := letters.Payload(ctx, c.id)
		if err != nil {
			return err
		}
		_, err = stdout.Write(payload)
		return err
	}

	letter, err := letters.Show(ctx, c.id)
	if err != nil {
		return err
	}
	return asJSON(stdout, letter)
}

func asJSON(stdout io.Writer, v any) error {
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

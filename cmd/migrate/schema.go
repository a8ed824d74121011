package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/oncepay/oncepay/migrations"
)

const upUsage = `Usage: migrate up

Applies what is missing of the schema, one file after the other, each in a transaction of its own. It can be run any
number of times and by several at once: one of them works, the others wait. A file that fails leaves those before it applied.

Example:
  DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay migrate up
`

func up(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	if done, err := parse(flags, args, upUsage, stdout); done || err != nil {
		return err
	}

	if err := noArguments(flags); err != nil {
		return err
	}

	// Connect ourselves first, so that a wrong address is reported within the time allowed.
	conn, err := connect(ctx, getenv)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	applied, err := migrations.Up(ctx, conn.Config().ConnString())
	// Report what was applied even if a later file failed.
	for _, m := range applied {
		fmt.Fprintln(stdout, "applied", m.Name)
	}
	if err != nil {
		return fmt.Errorf("apply migrations: %w", err)
	}

	// Up does nothing in a database that is newer than this program. Check rejects it.
	if err := migrations.Check(ctx, conn); err != nil {
		return err
	}

	_, err = fmt.Fprintf(stdout, "the schema is at version %d\n", migrations.Version())
	return err
}

const statusUsage = `Usage: migrate status

Lists the files of the schema and when each was applied, and says whether this program and the database belong together.

Example:
  DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay migrate status
`

func status(
	ctx context.Context, args []string, getenv func(string) string, stdout io.Writer,
) error {
	flags := flag.NewFlagSet("status", flag.ContinueOnError)
	if done, err := parse(flags, args, statusUsage, stdout); done || err != nil {
		return err
	}

	if err := noArguments(flags); err != nil {
		return err
	}

	conn, err := connect(ctx, getenv)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	files, err := migrations.Status(ctx, conn.Config().ConnString())
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}

	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "VERSION\tFILE\tAPPLIED")
	for _, m := range files {
		applied := "no"
		if !m.Applied.IsZero() {
			applied = m.Applied.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\n", m.Version, m.Name, applied)
	}

	if err := w.Flush(); err != nil {
		return err
	}

	switch err := migrations.Check(ctx, conn); {
	case errors.Is(err, migrations.ErrOutOfStep): // a finding to report, not a failure
		_, err = fmt.Fprintln(stdout, err)
		return err
	case err != nil:
		return err
	}

	_, err = fmt.Fprintf(stdout, "the schema is at version %d\n", migrations.Version())
	return err
}

func noArguments(flags *flag.FlagSet) error {
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q (migrate %s -h shows the flags)", flags.Arg(0), flags.Name())
	}
	return nil
}

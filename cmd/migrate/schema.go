package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/migrations"
)

func up(getenv func(string) string) *cobra.Command {
	var wait time.Duration
	up := &cobra.Command{
		Use:   "up",
		Short: "Apply what is missing of the schema",
		Long: `Applies what is missing of the schema, one file after the other, each in a transaction of its
own. It can be run any number of times and by several at once: one of them works, the others wait.
A file that fails leaves those before it applied.

It never keeps payments waiting: a table's lock that it does not get within half a second it asks
for again after a pause, and it gives up after --wait, naming the session that is in the way. It
changes nothing if a file is not what it was when it was applied.`,
		Example: "  DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay migrate up",
		RunE: func(c *cobra.Command, _ []string) error {
			// Connect ourselves first, so that a wrong address is reported within the time allowed.
			conn, err := connect(c.Context(), getenv)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(c.Context()))

			applied, err := migrations.UpWith(c.Context(), conn.Config().ConnString(), migrations.Locks{
				Wait: wait, OnWait: once(c.ErrOrStderr()),
			})
			// Report what was applied even if a later file failed.
			for _, m := range applied {
				fmt.Fprintln(c.OutOrStdout(), "applied", m.Name)
			}
			if err != nil {
				return fmt.Errorf("apply migrations: %w", err)
			}

			// Up does nothing in a database that is newer than this program. Check rejects it.
			if err := migrations.Check(c.Context(), conn); err != nil {
				return err
			}

			line, err := inStep(c.Context(), conn)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), line)
			return err
		},
	}
	up.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long to try for the locks of one file")
	return up
}

// once prints what is in the way when it has changed, not at every attempt.
func once(w io.Writer) func(string) {
	last := ""
	return func(who string) {
		if who != last {
			fmt.Fprintln(w, "waiting:", who)
		}
		last = who
	}
}

func inStep(ctx context.Context, conn *pgx.Conn) (string, error) {
	have, err := migrations.Applied(ctx, conn)
	if have > migrations.Version() {
		return fmt.Sprintf("the schema is at version %d, and serves this program, which has %d",
			have, migrations.Version()), err
	}
	return fmt.Sprintf("the schema is at version %d", have), err
}

// schema is the JSON form of status.
type schema struct {
	InStep bool   `json:"in_step"` // this program and the database belong together
	Note   string `json:"note"`
	Files  []file `json:"files"`
}

type file struct {
	Version int64      `json:"version"`
	Name    string     `json:"name"`
	Applied *time.Time `json:"applied_at"` // nil: not yet
	Changed bool       `json:"changed"`    // it was another file when it was applied
}

func status(getenv func(string) string) *cobra.Command {
	status := &cobra.Command{
		Use:   "status",
		Short: "Show what is applied, and whether this program fits the database",
		Long: `Lists the files of the schema and when each was applied, and says whether this program and the
database belong together. It exits with 0 either way: a script reads "in_step" in --json.`,
		Example: "  DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay migrate status",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := readSchema(c.Context(), getenv)
			if err != nil {
				return err
			}
			return program.Show(c, s, s.print)
		},
	}
	program.JSON(status)
	return status
}

func readSchema(ctx context.Context, getenv func(string) string) (s schema, err error) {
	conn, err := connect(ctx, getenv)
	if err != nil {
		return s, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	all, err := migrations.Status(ctx, conn)
	if err != nil {
		return s, err
	}
	for _, m := range all {
		f := file{Version: m.Version, Name: m.Name, Changed: m.Changed}
		if !m.Applied.IsZero() {
			applied := m.Applied.UTC()
			f.Applied = &applied
		}
		s.Files = append(s.Files, f)
	}

	err = errors.Join(migrations.Drift(all), migrations.Check(ctx, conn))
	if errors.Is(err, migrations.ErrOutOfStep) { // a finding to report, not a failure
		s.Note = err.Error()
		return s, nil
	}
	if err != nil {
		return s, err
	}
	s.InStep = true
	s.Note, err = inStep(ctx, conn)
	return s, err
}

func (s schema) print(w io.Writer) {
	program.Row(w, "VERSION", "FILE", "APPLIED")
	for _, f := range s.Files {
		program.Row(w, f.Version, f.Name, f.Applied)
	}
	fmt.Fprintf(w, "\n%s\n", s.Note)
}

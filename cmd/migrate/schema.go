package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/migrations"
)

func up(getenv func(string) string) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply what is missing of the schema",
		Long: `Applies what is missing of the schema, one file after the other, each in a transaction of its
own. It can be run any number of times and by several at once: one of them works, the others wait.
A file that fails leaves those before it applied.`,
		Example: "  DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay migrate up",
		RunE: func(c *cobra.Command, _ []string) error {
			// Connect ourselves first, so that a wrong address is reported within the time allowed.
			conn, err := connect(c.Context(), getenv)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(c.Context()))

			applied, err := migrations.Up(c.Context(), conn.Config().ConnString())
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

			_, err = fmt.Fprintln(c.OutOrStdout(), inStep())
			return err
		},
	}
}

func inStep() string { return fmt.Sprintf("the schema is at version %d", migrations.Version()) }

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

	all, err := migrations.Status(ctx, conn.Config().ConnString())
	if err != nil {
		return s, fmt.Errorf("read migrations: %w", err)
	}
	for _, m := range all {
		f := file{Version: m.Version, Name: m.Name}
		if !m.Applied.IsZero() {
			applied := m.Applied.UTC()
			f.Applied = &applied
		}
		s.Files = append(s.Files, f)
	}

	switch err := migrations.Check(ctx, conn); {
	case err == nil:
		s.InStep, s.Note = true, inStep()
	case errors.Is(err, migrations.ErrOutOfStep): // a finding to report, not a failure
		s.Note = err.Error()
	default:
		return s, err
	}
	return s, nil
}

func (s schema) print(w io.Writer) {
	program.Row(w, "VERSION", "FILE", "APPLIED")
	for _, f := range s.Files {
		program.Row(w, f.Version, f.Name, f.Applied)
	}
	fmt.Fprintf(w, "\n%s\n", s.Note)
}

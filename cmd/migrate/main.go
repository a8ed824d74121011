// Command migrate brings the schema up to date and reports its version. It runs as the owner of the
// schema. Tenants, clients and credentials, which an operator creates by hand, are made with oncepay.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }

const usage = `Usage: migrate <command> [flags]

  up      apply what is missing of the schema
  status  show what is applied

migrate <command> -h explains each.

Examples:
  export DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay
  migrate status
  migrate up

Environment:
`

// run is the whole program. It prints each problem as one line on stderr and returns the exit code.
func run(
	ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer,
) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()

	err := dispatch(ctx, args, getenv, stdout)
	if err == nil {
		return 0
	}

	// Configuration problems come one per line. The driver reports its attempts on several lines, but
	// they are one problem: join them.
	text := strings.NewReplacer(":\n\t", ": ", "\n\t", "; ").Replace(err.Error())
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintln(stderr, "migrate: "+line)
	}
	return 1
}

func dispatch(
	ctx context.Context, args []string, getenv func(string) string, stdout io.Writer,
) error {
	if len(args) == 0 {
		return errors.New("no command: up or status (migrate -h explains them)")
	}

	switch name, args := args[0], args[1:]; name {
	case "up":
		return up(ctx, args, getenv, stdout)
	case "status":
		return status(ctx, args, getenv, stdout)
	case "-h", "-help", "--help":
		_, err := io.WriteString(stdout, usage+config.Usage("migrate"))
		return err
	default:
		return fmt.Errorf("unknown command %q: up or status (migrate -h explains them)", name)
	}
}

// parse reads the flags of a command. done reports that -h was asked for and answered.
func parse(
	flags *flag.FlagSet, args []string, usage string, stdout io.Writer,
) (done bool, err error) {
	flags.SetOutput(io.Discard)

	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return true, nil
	case err != nil:
		return false, fmt.Errorf("%w (migrate %s -h shows the flags)", err, flags.Name())
	}

	return false, nil
}

// connectTimeout leaves room in the five seconds within which a wrong address must be reported.
const connectTimeout = 3 * time.Second

// connect reads the configuration and opens the database. The caller closes the connection.
func connect(ctx context.Context, getenv func(string) string) (*pgx.Conn, error) {
	cfg, err := config.LoadMigrate(getenv)
	if err != nil {
		return nil, err
	}

	postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

	dialCtx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(dialCtx, cfg.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to database: %w", err)
	}

	return conn, nil
}

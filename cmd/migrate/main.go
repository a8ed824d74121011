// Command migrate brings the schema up to date and reports its version. It runs as the owner of the
// schema. Tenants, clients and credentials, which an operator creates by hand, are made with oncepay.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }

// run is the whole program. It prints each problem as one line on stderr and returns the exit code.
func run(
	ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer,
) int {
	root := &cobra.Command{
		Use: "migrate",
		Long: "Brings the schema up to date and reports its version.\n\nVariables:\n" +
			config.Usage("migrate"),
		Example: `  export DATABASE_URL=postgres://postgres:secret@localhost:5432/oncepay
  migrate status
  migrate up`,
	}
	root.AddCommand(up(getenv), status(getenv))

	if err := program.Execute(ctx, root, args, stdout, stderr); err != nil {
		program.Complain(stderr, "migrate", err)
		return 1
	}
	return 0
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

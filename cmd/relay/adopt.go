package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/migrations"
)

// adoptTimeout is shorter than the lease that adopt takes.
const adoptTimeout = 50 * time.Second

func adoptCommand(getenv func(string) string) *cobra.Command {
	c := &cobra.Command{
		Use:   "adopt",
		Short: "Go on in an upgraded or moved database, once",
		Long: "Says that DATABASE_URL is where the relay goes on: after pg_upgrade or, with --from, after\n" +
			"a move by logical replication. Checks the cursor, the outbox and what Kafka has of them, and\n" +
			"changes nothing if they do not fit: a database that went back is refused. Stop every relay\n" +
			"of the name first.\n\n" +
			"The variables are the relay's.",
		Example: "  relay adopt\n" +
			"  relay adopt --from postgres://relay@old.internal:5432/oncepay",
	}

	from := c.Flags().String("from", "", "URL of the database that this one was moved from, "+
		"as the role relay; its password may be in ~/.pgpass")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(c.Context(), adoptTimeout)
		defer cancel()

		last, err := adopt(ctx, getenv, *from)
		switch {
		case errors.Is(err, relay.ErrAdopted):
			_, err = fmt.Fprintln(c.OutOrStdout(), err)
		case err == nil:
			_, err = fmt.Fprintf(c.OutOrStdout(), "adopted: the relay goes on behind event %d\n", last)
		}
		return err
	}
	return c
}

func adopt(ctx context.Context, getenv func(string) string, from string) (last int64, err error) {
	cfg, err := config.LoadRelay(getenv)
	if err != nil {
		return 0, err
	}
	producer, err := newProducer(cfg)
	if err != nil {
		return 0, err
	}

	db, err := openForAdopt(ctx, "DATABASE_URL", cfg.DatabaseURL)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	if err := producer.Ping(ctx); err != nil {
		return 0, err
	}

	r := &relay.Relay{DB: db, Open: producer.Open, Name: cfg.Name}
	if from == "" {
		return r.Adopt(ctx)
	}

	source, err := openForAdopt(ctx, "--from", from)
	if err != nil {
		return 0, err
	}
	defer source.Close()
	return r.AdoptFrom(ctx, source)
}

func openForAdopt(ctx context.Context, what, url string) (*pgxpool.Pool, error) {
	postgres.WarnPlainText(ctx, slog.Default(), what, url)
	db, err := postgres.Open(ctx, url, "relay", 2, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := migrations.Check(ctx, db); err != nil {
		db.Close()
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return db, nil
}

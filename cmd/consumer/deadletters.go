package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/statements"
)

var deadLetters = program.DeadLetters[inbox.DeadLetter]{
	Program: "consumer", About: "the events that cannot be processed",
	Variables: "The variables are the consumer's; DATABASE_URL is used.",
	Retried:   "is processed", Subject: "RECORD AND KEY", Reason: "booked by hand, ticket 4711",
	None: "there are no dead letters", NoneWaits: "no dead letter waits",

	Open: openDeadLetters, List: inbox.DeadLetters, Find: inbox.FindDeadLetter,
	Retry: inbox.RetryDeadLetter, Skip: inbox.SkipDeadLetter,
	NotFound: inbox.ErrNoDeadLetter, Unknown: "there is no dead letter with this id",
	Letter: func(d inbox.DeadLetter) program.Letter {
		return program.Letter{
			ID: d.ID, State: d.State, Type: d.Type,
			Subject: fmt.Sprintf("%s/%d/%d %q", d.Topic, d.Partition, d.Offset, d.Key),
			Reason:  d.Reason, Waiting: d.Waiting, Payload: d.Payload,
		}
	},
}

func openDeadLetters(
	ctx context.Context, getenv func(string) string,
) (*pgxpool.Pool, string, error) {
	cfg, err := config.LoadConsumer(getenv)
	if err != nil {
		return nil, "", err
	}
	postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

	quiet := slog.New(slog.DiscardHandler)
	db, err := postgres.Open(ctx, cfg.DatabaseURL, "consumer", 1, quiet)
	return db, statements.Consumer, err
}

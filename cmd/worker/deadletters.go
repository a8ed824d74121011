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
)

var deadLetters = program.DeadLetters[inbox.DeadLetter]{
	Program: "worker", About: "the events that cannot be made into webhooks",
	Variables: "The variables are the worker's; DATABASE_URL is used.",
	Retried:   "is processed", Subject: "RECORD AND KEY", Reason: "the shop was told, ticket 4711",
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
	cfg, err := config.LoadWorker(getenv)
	if err != nil {
		return nil, "", err
	}
	postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

	quiet := slog.New(slog.DiscardHandler)
	db, err := postgres.Open(ctx, cfg.DatabaseURL, "worker", 1, quiet)
	return db, webhooksConsumer, err
}

package main

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
)

var deadLetters = program.DeadLetters[relay.DeadLetter]{
	Program: "relay", About: "the events that Kafka refused",
	Variables: "The variables are the relay's; DATABASE_URL and RELAY_NAME are used.",
	Retried:   "is sent again", Subject: "AGGREGATE", Reason: "sent by hand, ticket 4711",
	None: "no event was refused", NoneWaits: "no refused event waits",

	Open: openDeadLetters, List: relay.DeadLetters, Find: relay.FindDeadLetter,
	Retry: relay.RetryDeadLetter, Skip: relay.SkipDeadLetter,
	NotFound: relay.ErrNoDeadLetter, Unknown: "no event with this id was refused",
	Letter: func(d relay.DeadLetter) program.Letter {
		return program.Letter{
			ID: d.ID, State: d.State, Type: d.Type,
			Subject: d.AggregateType + "/" + d.AggregateID,
			Reason:  d.Refusal, Waiting: d.Waiting, Payload: d.Payload,
		}
	},
}

func openDeadLetters(
	ctx context.Context, getenv func(string) string,
) (*pgxpool.Pool, string, error) {
	cfg, err := config.LoadRelay(getenv)
	if err != nil {
		return nil, "", err
	}
	postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

	quiet := slog.New(slog.DiscardHandler)
	db, err := postgres.Open(ctx, cfg.DatabaseURL, "relay", 1, quiet)
	return db, cfg.Name, err
}

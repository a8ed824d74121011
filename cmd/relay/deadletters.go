package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
)

var deadLetters = program.DeadLetters{
	Program: "relay", About: "the events that Kafka refused",
	Variables: "The variables are the relay's; DATABASE_URL and RELAY_NAME are used.",
	Retried:   "is sent again", Subject: "AGGREGATE", Reason: "sent by hand, ticket 4711",
	None: "no event was refused", NoneWaits: "no refused event waits",
	Open: func(ctx context.Context, getenv func(string) string) (program.Letters, func(), error) {
		cfg, err := config.LoadRelay(getenv)
		if err != nil {
			return nil, nil, err
		}

		postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

		pool, err := postgres.Open(ctx, cfg.DatabaseURL, "relay", 1, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, nil, err
		}
		return letters{pool, cfg.Name}, func() { postgres.Close(pool) }, nil
	},
}

// letters are the dead letters of one relay.
type letters struct {
	db    *pgxpool.Pool
	relay string
}

func letter(d relay.DeadLetter) program.Letter {
	return program.Letter{
		ID: d.ID, State: d.State, Type: d.Type, Subject: d.AggregateType + "/" + d.AggregateID,
		Reason: d.Refusal, Waiting: d.Waiting, All: d,
	}
}

func (l letters) List(ctx context.Context, all bool) (found []program.Letter, err error) {
	refused, err := relay.DeadLetters(ctx, l.db, l.relay, all)
	for _, d := range refused {
		found = append(found, letter(d))
	}
	return found, err
}

var errNotRefused = errors.New("no event with this id was refused")

func (l letters) Find(ctx context.Context, id int64) (program.Letter, error) {
	d, err := relay.FindDeadLetter(ctx, l.db, l.relay, id)
	if errors.Is(err, relay.ErrNoDeadLetter) {
		err = errNotRefused
	}
	return letter(d), err
}

func (l letters) Payload(ctx context.Context, id int64) ([]byte, error) {
	payload, err := relay.DeadLetterPayload(ctx, l.db, l.relay, id)
	if errors.Is(err, relay.ErrNoDeadLetter) {
		err = errNotRefused
	}
	return payload, err
}

func (l letters) Retry(ctx context.Context, id int64) error {
	return relay.RetryDeadLetter(ctx, l.db, l.relay, id)
}

func (l letters) Skip(ctx context.Context, id int64, reason string) error {
	return relay.SkipDeadLetter(ctx, l.db, l.relay, id, reason)
}

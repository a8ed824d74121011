package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/statements"
)

var deadLetters = program.DeadLetters{
	Program: "consumer", About: "the events that cannot be processed",
	Variables: "The variables are the consumer's; DATABASE_URL is used.",
	Retried:   "is processed", Subject: "RECORD AND KEY", Reason: "booked by hand, ticket 4711",
	None: "there are no dead letters", NoneWaits: "no dead letter waits",
	Open: func(ctx context.Context, getenv func(string) string) (program.Letters, func(), error) {
		cfg, err := config.LoadConsumer(getenv)
		if err != nil {
			return nil, nil, err
		}

		postgres.WarnPlainText(ctx, slog.Default(), "DATABASE_URL", cfg.DatabaseURL)

		pool, err := postgres.Open(
			ctx, cfg.DatabaseURL, "consumer", 1, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, nil, err
		}
		return letters{pool}, func() { postgres.Close(pool) }, nil
	},
}

// letters are the dead letters of the statements.
type letters struct{ db *pgxpool.Pool }

func letter(d inbox.DeadLetter) program.Letter {
	return program.Letter{
		ID: d.ID, State: d.State, Type: d.Type,
		Subject: fmt.Sprintf("%s/%d/%d %q", d.Topic, d.Partition, d.Offset, d.Key),
		Reason:  d.Reason, Waiting: d.Waiting, All: d,
	}
}

func (l letters) List(ctx context.Context, all bool) (found []program.Letter, err error) {
	dead, err := inbox.DeadLetters(ctx, l.db, statements.Consumer, all)
	for _, d := range dead {
		found = append(found, letter(d))
	}
	return found, err
}

var errNoLetter = errors.New("there is no dead letter with this id")

func (l letters) Find(ctx context.Context, id int64) (program.Letter, error) {
	d, err := inbox.FindDeadLetter(ctx, l.db, statements.Consumer, id)
	if errors.Is(err, inbox.ErrNoDeadLetter) {
		err = errNoLetter
	}
	return letter(d), err
}

func (l letters) Payload(ctx context.Context, id int64) ([]byte, error) {
	payload, err := inbox.DeadLetterPayload(ctx, l.db, statements.Consumer, id)
	if errors.Is(err, inbox.ErrNoDeadLetter) {
		err = errNoLetter
	}
	return payload, err
}

func (l letters) Retry(ctx context.Context, id int64) error {
	return inbox.RetryDeadLetter(ctx, l.db, statements.Consumer, id)
}

func (l letters) Skip(ctx context.Context, id int64, reason string) error {
	return inbox.SkipDeadLetter(ctx, l.db, statements.Consumer, id, reason)
}

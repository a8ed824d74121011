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

const deadLettersHelp = `consumer dead-letters shows the events that cannot be processed, and decides on them. Their aggregates are parked meanwhile.

Usage:
  consumer dead-letters list [-all] [-json]    one line for each dead letter that waits; -all: those of the past, too
  consumer dead-letters show ID                what is known of one, as JSON, but for its payload
  consumer dead-letters show -payload ID       its payload, byte for byte; it may hold what not everybody is to see
  consumer dead-letters retry ID               processes it, and then what waits behind it
  consumer dead-letters skip -reason "…" ID    gives it up, and processes what waits behind it; the reason is kept
  consumer dead-letters -h                     this text

The variables are the consumer's; DATABASE_URL is used. A running consumer acts within a second.

Examples:
  consumer dead-letters list
  consumer dead-letters retry 1234
  consumer dead-letters skip -reason "booked by hand, ticket 4711" 1234
`

var deadLetters = program.DeadLetters{
	Program: "consumer", Help: deadLettersHelp,
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

var errNoLetter = errors.New("there is no dead letter with this id")

func (l letters) List(ctx context.Context, all bool) (any, []string, error) {
	found, err := inbox.DeadLetters(ctx, l.db, statements.Consumer, all)

	var lines []string
	for _, d := range found {
		lines = append(lines, fmt.Sprintf("%d %s %s/%d/%d %q %s: %s; %d of its aggregate wait",
			d.ID, d.State, d.Topic, d.Partition, d.Offset, d.Key, d.Type, d.Reason, d.Waiting))
	}

	return found, lines, err
}

func (l letters) Show(ctx context.Context, id int64) (any, error) { return l.find(ctx, id) }

func (l letters) find(ctx context.Context, id int64) (inbox.DeadLetter, error) {
	found, err := inbox.FindDeadLetter(ctx, l.db, statements.Consumer, id)
	if errors.Is(err, inbox.ErrNoDeadLetter) {
		err = errNoLetter
	}

	return found, err
}

func (l letters) Payload(ctx context.Context, id int64) ([]byte, error) {
	found, err := l.find(ctx, id)
	return found.Payload, err
}

func (l letters) Retry(ctx context.Context, id int64) error {
	return inbox.RetryDeadLetter(ctx, l.db, statements.Consumer, id)
}

func (l letters) Skip(ctx context.Context, id int64, reason string) error {
	return inbox.SkipDeadLetter(ctx, l.db, statements.Consumer, id, reason)
}

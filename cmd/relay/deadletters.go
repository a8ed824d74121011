package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
)

const deadLettersHelp = `relay dead-letters shows the events that Kafka refused, and decides on them. Their aggregates are parked meanwhile.

Usage:
  relay dead-letters list [-all] [-json]       one line for each refused event that waits; -all: those of the past, too
  relay dead-letters show ID                   what is known of one, as JSON, but for its payload
  relay dead-letters show -payload ID          its payload, byte for byte; it may hold what not everybody is to see
  relay dead-letters retry ID                  sends it again, and then what waits behind it
  relay dead-letters skip -reason "…" ID       gives it up, and sends what waits behind it; the reason is kept
  relay dead-letters -h                        this text

The variables are the relay's; DATABASE_URL and RELAY_NAME are used. The leader acts within a second.

Examples:
  relay dead-letters list
  relay dead-letters retry 1234
  relay dead-letters skip -reason "sent by hand, ticket 4711" 1234
`

var deadLetters = program.DeadLetters{
	Program: "relay", Help: deadLettersHelp,
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

var errNotRefused = errors.New("no event with this id was refused")

func (l letters) List(ctx context.Context, all bool) (any, []string, error) {
	found, err := relay.DeadLetters(ctx, l.db, l.relay, all)

	var lines []string
	for _, d := range found {
		lines = append(lines, fmt.Sprintf("%d %s %s/%s %s: %s; %d of its aggregate wait",
			d.ID, d.State, d.AggregateType, d.AggregateID, d.Type, d.Refusal, d.Waiting))
	}

	return found, lines, err
}

func (l letters) Show(ctx context.Context, id int64) (any, error) {
	return l.find(ctx, id)
}

func (l letters) find(ctx context.Context, id int64) (relay.DeadLetter, error) {
	found, err := relay.FindDeadLetter(ctx, l.db, l.relay, id)
	if errors.Is(err, relay.ErrNoDeadLetter) {
		err = errNotRefused
	}

	return found, err
}

func (l letters) Payload(ctx context.Context, id int64) ([]byte, error) {
	found, err := l.find(ctx, id)
	return found.Payload, err
}

func (l letters) Retry(ctx context.Context, id int64) error {
	return relay.RetryDeadLetter(ctx, l.db, l.relay, id)
}

func (l letters) Skip(ctx context.Context, id int64, reason string) error {
	return relay.SkipDeadLetter(ctx, l.db, l.relay, id, reason)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The relay of the tutorials, to compare with: lock a hundred rows, send them, mark them, commit. It is as good as that can be: there is the
// partial index, a lost race for a row is skipped, the batch is sent in one call, nothing waits while there is more, and franz-go's linger of 10 ms
// a batch is off.
const (
	tutorialName  = "tutorial-relay"
	tutorialTable = "tutorial_outbox"

	tutorialBatch    = 100
	tutorialInterval = 500 * time.Millisecond // between polls that find nothing; tutorials have 0.5 to 5 s
)

const tutorialSchema = `
CREATE TABLE ` + tutorialTable + ` (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id       uuid        NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        bytea       NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    published_at   timestamptz
);
CREATE INDEX ` + tutorialTable + `_unpublished ON ` + tutorialTable + ` (id) WHERE published_at IS NULL`

const lockUnpublished = `
SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload
FROM ` + tutorialTable + ` WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`

const markPublished = `UPDATE ` + tutorialTable + ` SET published_at = now() WHERE id = ANY($1)`

// tutorialRelay runs until ctx ends. It is a program of its own, so that its cost can be told from the benchmark's.
func tutorialRelay(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	if getenv("DATABASE_URL") == "" || getenv("KAFKA_BROKERS") == "" {
		return errors.New("the tutorial relay is started by bench relay: it needs DATABASE_URL and KAFKA_BROKERS")
	}
	pool, err := pgxpool.New(ctx, getenv("DATABASE_URL"))
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer pool.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(getenv("KAFKA_BROKERS"), ",")...), kgo.ProducerLinger(0))
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()
	if err := errors.Join(pool.Ping(ctx), client.Ping(ctx)); err != nil {
		return fmt.Errorf("reach Postgres and Kafka: %w", err)
	}
	slog.New(slog.NewJSONHandler(stderr, nil)).InfoContext(ctx, tutorialName+" started")
	for ctx.Err() == nil {
		sent, err := relayBatch(ctx, pool, client, getenv("TOPIC_PREFIX"))
		if err != nil && ctx.Err() == nil {
			return err
		}
		if sent == 0 {
			wait(ctx, time.Now().Add(tutorialInterval))
		}
	}
	return nil
}

// relayBatch holds its transaction open while the broker is waited for, as the tutorials do.
func relayBatch(ctx context.Context, pool *pgxpool.Pool, client *kgo.Client, prefix string) (sent int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lockUnpublished, tutorialBatch)
		if err != nil {
			return fmt.Errorf("read outbox: %w", err)
		}
		var ids []int64
		var records []*kgo.Record
		var (
			id                             int64
			event                          uuid.UUID
			aggregateType, aggregate, kind string
			payload                        []byte
		)
		if _, err := pgx.ForEachRow(rows, []any{&id, &event, &aggregateType, &aggregate, &kind, &payload}, func() error {
			ids = append(ids, id)
			records = append(records, &kgo.Record{
				Topic: prefix + aggregateType, Key: []byte(aggregate), Value: append([]byte(nil), payload...),
				Headers: []kgo.RecordHeader{{Key: "ce_id", Value: []byte(event.String())}, {Key: "ce_type", Value: []byte(kind)}},
			})
			return nil
		}); err != nil {
			return fmt.Errorf("read outbox: %w", err)
		}
		if len(ids) == 0 {
			return nil
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
		if _, err := tx.Exec(ctx, markPublished, ids); err != nil {
			return fmt.Errorf("mark events as published: %w", err)
		}
		sent = len(ids)
		return nil
	})
	return sent, err
}

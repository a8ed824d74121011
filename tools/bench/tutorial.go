package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/tools/rig"
)

// The relay of the tutorials, to compare with: lock a hundred rows, send them, mark them, commit.
// It is as good as that can be: there is the partial index, a lost race for a row is skipped, the
// batch is sent in one call, nothing waits while there is more, and the client does not linger.
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
SELECT id, event_id::text, aggregate_type, aggregate_id::bytea, event_type, payload
FROM ` + tutorialTable + ` WHERE published_at IS NULL ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`

const markPublished = `UPDATE ` + tutorialTable + ` SET published_at = now() WHERE id = ANY($1)`

// tutorialRelay runs until ctx ends. It is a program of its own, so that its cost can be told from
// the benchmark's.
func tutorialRelay(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	if getenv("DATABASE_URL") == "" || getenv("KAFKA_BROKERS") == "" {
		return errors.New("the tutorial relay is started by bench relay: it needs DATABASE_URL and KAFKA_BROKERS")
	}

	conn, err := rig.Connect(ctx, getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(getenv("KAFKA_BROKERS"), ",")...), kgo.ProducerLinger(0))
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("reach Kafka: %w", err)
	}

	// child.Start waits for this line.
	slog.New(slog.NewJSONHandler(stderr, nil)).InfoContext(ctx, tutorialName+" started")
	for ctx.Err() == nil {
		sent, err := relayBatch(ctx, conn, client, getenv("TOPIC_PREFIX"))
		if err != nil && ctx.Err() == nil {
			return err
		}

		if sent == 0 {
			rig.Wait(ctx, time.Now().Add(tutorialInterval))
		}
	}

	return nil
}

// relayBatch holds its transaction open while it waits for the broker, as the tutorials do.
func relayBatch(ctx context.Context, conn *pgx.Conn, client *kgo.Client, prefix string) (sent int, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var ids []int64
		var records []*kgo.Record
		rows, _ := tx.Query(ctx, lockUnpublished, tutorialBatch) // CollectRows returns its error
		_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			var id int64
			var event, topic, kind string
			r := &kgo.Record{}
			err := row.Scan(&id, &event, &topic, &r.Key, &kind, &r.Value)
			r.Topic = prefix + topic
			r.Headers = []kgo.RecordHeader{
				{Key: "ce_id", Value: []byte(event)}, {Key: "ce_type", Value: []byte(kind)},
			}
			ids, records = append(ids, id), append(records, r)
			return struct{}{}, err
		})
		if sent = len(ids); sent == 0 || err != nil {
			return err
		}

		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}

		_, err = tx.Exec(ctx, markPublished, ids)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("relay a batch: %w", err)
	}

	return sent, nil
}

package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
)

const partitionsEvery = 10 * time.Minute

// upkeep creates the partitions of the coming days, now and every ten minutes, until ctx ends. The
// relay does the same, and drops old ones; payments must not depend on it.
func upkeep(ctx context.Context, db idempotency.Beginner, log *slog.Logger) error {
	next := time.NewTicker(partitionsEvery)
	defer next.Stop()

	for {
		keys, err := idempotency.MakePartitions(ctx, db)
		report(ctx, log, "idempotency_keys", keys, err)
		events, err := outbox.MakePartitions(ctx, db)
		report(ctx, log, "outbox_events", events, err)

		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
	}
}

func report(ctx context.Context, log *slog.Logger, table string, made int, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil: // a request that meets a missing day creates it
		log.WarnContext(ctx, "partitions not made", "table", table, "error", err)
	case made > 0:
		log.InfoContext(ctx, "partitions made", "table", table, "made", made)
	}
}

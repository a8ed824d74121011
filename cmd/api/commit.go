package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// group turns requests into transactions.
type group = groupcommit.Group[payments.Request, idempotency.Answer]

// results turns what webhooks of the PSP say into transactions.
type results = groupcommit.Group[payments.Result, payments.Recorded]

// newResults returns a group that records with p. One transaction runs at a time: however many webhooks
// come, they take one connection of the write pool, and payments have the others.
func newResults(p *payments.Processor) *results {
	return groupcommit.New(p.Record, groupcommit.Options{Committers: 1, Split: payments.OneIsToBlame})
}

// newGroup returns a group that commits with p.
func newGroup(
	p *payments.Processor, cfg config.API, metrics *telemetry.API, log *slog.Logger,
) *group {
	commit := func(
		ctx context.Context, rs []payments.Request,
	) (answers []idempotency.Answer, err error) {
		ctx, end := startBatch(ctx, rs)
		began := time.Now()
		defer func() {
			metrics.Committed(ctx, time.Since(began), answers == nil) // nil after a panic, too
			end(err)
		}()
		return p.Process(ctx, rs)
	}

	return groupcommit.New(commit, groupcommit.Options{
		Committers: cfg.Committers, MaxBatch: cfg.BatchMax, Split: payments.OneIsToBlame,
		OnBatch: func(b groupcommit.Batch) {
			metrics.Batch(b.Size, b.Waited)

			// A batch that is split fails again with one request, which was logged with the batch.
			var panicked *groupcommit.PanicError
			if errors.As(b.Err, &panicked) && !b.Again {
				log.Error("panic in a transaction", "requests", b.Size,
					"panic", panicked.Value, "stack", string(panicked.Stack))
			}
		},
	})
}

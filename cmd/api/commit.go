package main

import (
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// group is where requests become transactions.
type group = groupcommit.Group[payments.Request, idempotency.Answer]

// newGroup commits with p. With GROUP_COMMIT=off a transaction has one request, and there are as many as the pool has connections.
func newGroup(p *payments.Processor, cfg config.API, metrics *telemetry.API, log *slog.Logger) *group {
	o := groupcommit.Options{
		Committers: cfg.Committers, MaxBatch: cfg.BatchMax, Queue: cfg.QueueMax, Split: oneIsToBlame,
		OnBatch: func(b groupcommit.Batch) {
			metrics.Committed(b.Size, b.Waited, b.Took, b.Err != nil)
			var panicked *groupcommit.PanicError
			if errors.As(b.Err, &panicked) && !b.Again { // of its batch it was said already
				log.Error("panic in a transaction", "requests", b.Size, "panic", panicked.Value, "stack", string(panicked.Stack))
			}
		},
	}
	if cfg.GroupCommit == "off" {
		o.Committers, o.MaxBatch = cfg.DatabasePool, 1
	}
	return groupcommit.New(p.Process, o)
}

// oneIsToBlame says whether a batch failed for the data of one of its requests (class 22: data exception, 23: integrity constraint
// violation). Anything else would fail them one by one, too: a database that is away must not get a hundred times the load. And
// after an unknown outcome one that was done would be told that it is a replay.
func oneIsToBlame(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && len(e.Code) == 5 && (e.Code[:2] == "22" || e.Code[:2] == "23") && !errors.Is(err, idempotency.ErrOutcomeUnknown)
}

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

// group turns requests into transactions.
type group = groupcommit.Group[payments.Request, idempotency.Answer]

// newGroup returns a group that commits with p.
func newGroup(
	p *payments.Processor, cfg config.API, metrics *telemetry.API, log *slog.Logger,
) *group {
	return groupcommit.New(p.Process, groupcommit.Options{
		Committers: cfg.Committers, MaxBatch: cfg.BatchMax, Split: oneIsToBlame,
		OnBatch: func(b groupcommit.Batch) {
			metrics.Committed(b.Size, b.Waited, b.Took, b.Err != nil)

			// A batch that is split fails again with one request, which was logged with the batch.
			var panicked *groupcommit.PanicError
			if errors.As(b.Err, &panicked) && !b.Again {
				log.Error("panic in a transaction", "requests", b.Size,
					"panic", panicked.Value, "stack", string(panicked.Stack))
			}
		},
	})
}

// oneIsToBlame reports whether a batch failed because of the data of one of its requests (class 22:
// data exception, 23: integrity constraint violation). Any other error would fail them one by one
// as well: a database that is away must not get a hundred times the load. After an unknown outcome,
// a request that was executed would be told that it is a replay.
func oneIsToBlame(err error) bool {
	var e *pgconn.PgError
	switch {
	case errors.Is(err, idempotency.ErrOutcomeUnknown):
		return false
	case errors.Is(err, payments.ErrDamaged):
		return true
	case !errors.As(err, &e) || len(e.Code) != 5:
		return false
	}
	return e.Code[:2] == "22" || e.Code[:2] == "23"
}

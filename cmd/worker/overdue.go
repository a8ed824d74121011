package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// overdue measures how far the release of holds is behind. It does so beside it: a batch that is
// stuck must not hide that.
type overdue struct {
	db      *pgxpool.Pool
	metrics *telemetry.Worker
	stall   *stall // nil: this worker releases nothing
}

const (
	measureEvery   = 2 * time.Second
	measureTimeout = 10 * time.Second // a connection may have died unnoticed
)

func (o *overdue) run(ctx context.Context) error { return every(ctx, measureEvery, o.measure) }

// every calls f at once and then every d, until ctx ends.
func every(ctx context.Context, d time.Duration, f func(context.Context)) error {
	next := time.NewTicker(d)
	defer next.Stop()

	for {
		f(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
	}
}

// measure logs nothing when the database is down: expiry does.
func (o *overdue) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	// A value that could not be measured is withdrawn, not left at its last reading.
	age, err := payments.OldestOverdue(ctx, o.db)
	if err != nil {
		o.metrics.NoOverdue()
	} else {
		o.metrics.Overdue(age)
	}

	if o.stall == nil {
		return
	}
	n, first, err := payments.CountOverdue(ctx, o.db)
	if err != nil {
		o.stall.unknown()
		return
	}
	o.stall.look(work{waits: n > 0, count: n, first: first,
		why: "the first authorization was over at " + first.UTC().Format(time.RFC3339) +
			"; the log names errors and locked accounts"})
}

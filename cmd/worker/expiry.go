package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// expiry releases the holds of authorizations whose time is over.
type expiry struct {
	expire   func(ctx context.Context, limit int) (int, error)
	interval time.Duration
	locked   *locked
	moves    func() // called when authorizations were released
	metrics  *telemetry.Worker
	log      *slog.Logger
}

func newExpiry(
	cfg config.Worker, db *pgxpool.Pool, moves func(), metrics *telemetry.Worker, log *slog.Logger,
) *expiry {
	locked := &locked{log: log}
	processor := &payments.Processor{DB: db, OnHeld: locked.found}
	return &expiry{
		expire: processor.ExpireBatch, interval: cfg.ExpiryInterval,
		locked: locked, moves: moves, metrics: metrics, log: log,
	}
}

const (
	batchMax = 100

	// What is in hand when the worker is told to stop may finish. A server that has stopped without
	// closing its connections is given up.
	batchTimeout = 10 * time.Second

	maxBackoff = 5 * time.Second
)

// run releases what is over, until ctx ends. Nothing that fails ends it: what was not released is
// found again.
func (e *expiry) run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		n, err := e.batch(ctx)
		took := time.Since(began)

		if n > 0 {
			e.metrics.Expired(n, took)
			e.moves()
		}
		if err != nil { // perhaps of one payment only
			failures++
			e.metrics.Error()
			e.log.WarnContext(ctx, "authorizations not released, trying again",
				"failures", failures, "error", err)
			sleep(ctx, rand.N(min(maxBackoff, 50*time.Millisecond<<min(failures, 10))))
			continue
		}

		// Many authorizations may end in the same second. Payments wait for the accounts that a batch
		// locks, so they have the database to themselves for as long as the batch took.
		failures = 0
		if n == batchMax {
			sleep(ctx, took)
			continue
		}
		e.locked.swept()
		sleep(ctx, e.interval)
	}
	return nil
}

func (e *expiry) batch(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	return e.expire(ctx, batchMax)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// locked logs each row that another session keeps locked when it is first found so, and not again in
// every sweep.
type locked struct {
	log         *slog.Logger
	before, now map[uuid.UUID]bool // by the last sweep and by this one
}

func (l *locked) found(id uuid.UUID) {
	if l.now == nil {
		l.now = map[uuid.UUID]bool{}
	}
	if !l.before[id] && !l.now[id] {
		l.log.Warn("account is locked by another session; its authorizations keep their holds",
			"account_id", id)
	}
	l.now[id] = true
}

// swept is called when all that was over has been tried.
func (l *locked) swept() { l.before, l.now = l.now, nil }

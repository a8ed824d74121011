package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// newPSP returns the part that charges and refunds cards.
func newPSP(
	db *pgxpool.Pool, cfg config.Worker, metrics *telemetry.PSP, log *slog.Logger,
) *psp.Worker {
	held := &occasional{every: time.Minute, last: map[uuid.UUID]time.Time{}}
	processor := &payments.Processor{DB: db, OnHeld: func(id uuid.UUID) {
		// The clearing account is in every result: the API and other workers have it in turn.
		if held.now(id) {
			log.Warn("account or payment is locked by another session; results for it wait", "id", id)
		}
	}}
	client := psp.NewClient(cfg.PSPURL, cfg.PSPAPIKey, cfg.PSPConcurrency)
	breaker := psp.NewBreaker(client, func(state string) {
		metrics.Breaker(state)
		log.Warn("the breaker of the PSP has changed its state", "state", state)
	})

	return &psp.Worker{
		Claim: processor.ClaimOperations, Record: processor.Record, Provider: breaker,
		KeyRetention: cfg.PSPKeyRetention, Concurrency: cfg.PSPConcurrency, Interval: cfg.PSPInterval,
		Log: log,
		Observe: psp.Observer{
			FirstCall: metrics.FirstCall,
			Called: func(call string, o psp.Outcome, took time.Duration) {
				metrics.Called(call, string(o), took)
			},
			InFlight: metrics.InFlight,
			Recorded: func(kind payments.OperationKind, r payments.Recorded) {
				metrics.Recorded(string(kind), recordedNames[r])
			},
			Conflict: func(kind payments.OperationKind) { metrics.Conflict(string(kind)) },
		},
	}
}

// occasional says when to log something about a row again.
type occasional struct {
	every time.Duration
	mu    sync.Mutex
	last  map[uuid.UUID]time.Time
}

func (o *occasional) now(id uuid.UUID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	now := time.Now()
	if now.Sub(o.last[id]) < o.every {
		return false
	}
	if len(o.last) >= 10_000 { // bounds its memory
		clear(o.last)
	}
	o.last[id] = now
	return true
}

// recordedNames are the values of the label recorded.
var recordedNames = map[payments.Recorded]string{
	payments.Applied: "applied", payments.Repeated: "repeated", payments.Conflict: "conflict",
	payments.Stale: "stale", payments.NoOperation: "no_operation",
	payments.Unbookable: "unbookable", payments.Locked: "locked",
}

// unsettled measures what has no result yet, beside the part that works on it.
type unsettled struct {
	db      *pgxpool.Pool
	metrics *telemetry.PSP
}

func (u *unsettled) run(ctx context.Context) error { return every(ctx, measureEvery, u.measure) }

// measure logs nothing when the database is down: psp does.
func (u *unsettled) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	// A value that could not be measured is withdrawn, not left at its last reading.
	w, err := payments.CountWaiting(ctx, u.db)
	if err != nil {
		u.metrics.NoWaiting()
		return
	}
	u.metrics.Waiting(w.Pending, w.Unknown, w.Operator, w.Oldest)
}

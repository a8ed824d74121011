package main

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// cards charges and refunds cards at the PSP, and measures what has no result yet.
type cards struct {
	db      *pgxpool.Pool
	worker  *psp.Worker
	metrics *telemetry.PSP
	stall   *stall
}

// pspStall is five leases of a claim: an operation whose replies were lost has been sent five times.
const pspStall = 100 * time.Second

func newCards(
	cfg config.Worker, db *pgxpool.Pool, reg prometheus.Registerer, stall *stall, log *slog.Logger,
) *cards {
	metrics := telemetry.NewPSP(reg)
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

	worker := &psp.Worker{
		Claim: processor.ClaimOperations, Record: processor.Record, Provider: breaker,
		KeyRetention: cfg.PSPKeyRetention, Concurrency: cfg.PSPConcurrency, Interval: cfg.PSPInterval,
		Log: log,
		Observe: psp.Observer{
			FirstCall: metrics.FirstCall,
			Begin:     continued,
			Call: func(
				ctx context.Context, call string, op payments.Operation,
			) (context.Context, func(psp.Outcome)) {
				began := time.Now()
				ctx, end := startCharge(ctx, cfg.PSPURL, call, op)
				return ctx, func(o psp.Outcome) {
					metrics.Called(ctx, call, string(o), time.Since(began))
					end(o)
				}
			},
			InFlight: metrics.InFlight,
			Recorded: func(
				kind payments.OperationKind, state payments.OperationState, r payments.Recorded,
			) {
				metrics.Recorded(string(kind), recordedNames[r])
				if r == payments.Applied && state.Ended() {
					stall.moves()
				}
			},
			Conflict: func(kind payments.OperationKind) { metrics.Conflict(string(kind)) },
		},
	}
	return &cards{db, worker, metrics, stall}
}

// run runs until ctx ends.
func (c *cards) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.worker.Run(ctx) })
	g.Go(func() error { return every(ctx, measureEvery, c.measure) })
	return g.Wait()
}

// detail is what a probe should say beside its verdict.
func (c *cards) detail() string { return "psp breaker: " + c.worker.Provider.State() }

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

// measure logs nothing when the database is down: the worker does.
func (c *cards) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	// A value that could not be measured is withdrawn, not left at its last reading.
	w, err := payments.CountWaiting(ctx, c.db)
	if err != nil {
		c.metrics.NoWaiting()
		c.stall.unknown()
		return
	}
	c.metrics.Waiting(w.Pending, w.Unknown, w.Operator, w.Oldest)

	n := w.Pending + w.Unknown // an operator's wait for a person
	c.stall.look(work{waits: n > 0, count: n, first: w.Since, ended: w.LastEnded,
		why: c.detail() + ", last error: " + cmp.Or(w.Error, "none")})
}

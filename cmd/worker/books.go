package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// books watches that the ledger balances, in two ways that cost payments nothing: the sum of all
// balances, once a minute, and a walk through the accounts and their newest entries that rests for
// most of the time.
type books struct {
	db      *pgxpool.Pool
	metrics *telemetry.Worker
	log     *slog.Logger

	after       uuid.UUID // where the walk is
	found, last int       // wrong accounts of this walk so far, and of the one before
}

const (
	booksEvery   = time.Minute
	accountsStep = 100
	sumTimeout   = 50 * time.Second // every account is read

	// For each second of work the walk rests for 19: it takes 5 % of a processor at most.
	restFactor = 19
)

func (b *books) runSum(ctx context.Context) error  { return every(ctx, booksEvery, b.sum) }
func (b *books) runWalk(ctx context.Context) error { return every(ctx, booksEvery, b.walk) }

func (b *books) sum(ending context.Context) {
	ctx, cancel := context.WithTimeout(ending, sumTimeout)
	defer cancel()

	// A value that could not be measured is withdrawn, not left at its last reading.
	sums, err := payments.Imbalances(ctx, b.db)
	if err != nil {
		b.metrics.NoBooks("currencies")
		if ending.Err() == nil {
			b.log.WarnContext(ctx, "balances not summed", "error", err)
		}
		return
	}
	b.metrics.Books("currencies", len(sums))
	for currency, sum := range sums {
		b.log.ErrorContext(ctx, "balances do not sum to zero", "currency", currency, "sum_minor", sum)
	}
}

// walk checks all accounts. It goes on where one before was interrupted.
func (b *books) walk(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		if !b.step(ctx) || b.after == uuid.Nil {
			return
		}
		sleep(ctx, restFactor*time.Since(began))
	}
}

func (b *books) step(ctx context.Context) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	wrong, next, err := payments.CheckAccounts(ctx, b.db, b.after, accountsStep)
	if err != nil {
		b.metrics.NoBooks("accounts")
		return false
	}
	if len(wrong) > 0 {
		b.log.ErrorContext(ctx, "accounts do not agree with their ledger entries", "account_ids", wrong)
	}

	b.after, b.found = next, b.found+len(wrong)
	if next == uuid.Nil {
		b.last, b.found = b.found, 0
	}
	b.metrics.Books("accounts", max(b.last, b.found))
	return true
}

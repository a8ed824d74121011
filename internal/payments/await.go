package payments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Advanced: skip this file at a first reading.
//
// Another session may lock an account or a payment and keep it: psql in an open transaction, an
// instance that froze. A batch waits 200 ms for a row, then it asks who has it. If one of our own
// transactions does, slow as its COMMIT may be, the batch waits on, as it should. If another session
// does, it runs again without the requests that need this row. Until the row is free, later
// requests for it are set apart from the start: they wait in Await, without a transaction or a
// committer.
//
// No request holds one row while it waits for a held one, so there is no deadlock: Await locks that
// one row alone and releases it at once.
const (
	lockPatience = `SET LOCAL lock_timeout = '200ms'`
	lockDefault  = `SET LOCAL lock_timeout TO DEFAULT`

	awaitTimeout = 5 * time.Second // how long a request waits for its rows; the handler has 8 s
	awaitPoll    = 25 * time.Millisecond
	maxAwaiting  = 1000   // requests in Await; beyond that they stay Busy
	maxWatched   = 4      // rows that are watched at a time, each on a connection
	maxLearned   = 10_000 // payments whose accounts are remembered while something is held
)

// blockedError is a batch that could not lock one of these payments or accounts: the first that
// exists. Nothing was done. It does not unwrap to the server's error, which CommitOnce would retry.
type blockedError struct {
	payments, accounts []rowKey // one of them is nil
	cause              error
}

func (e *blockedError) Error() string {
	return fmt.Sprintf("an account or payment is locked by another session: %v", e.cause)
}

// timedOut reports whether a statement waited too long for a lock.
func timedOut(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "55P03"
}

// Await waits until no row that r needs is held, for at most 5 s, and reports whether that is
// so. Call it for a request that was Busy, and submit the request again if it returns true.
func (p *Processor) Await(ctx context.Context, r Request) bool {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()

	if !p.held.enter() {
		return false
	}
	defer p.held.leave()

	for ctx.Err() == nil {
		needed, found := p.held.of(r)
		if !found {
			return true
		}

		// One request watches a row, the others poll what it found.
		if p.held.watch(needed) {
			free := p.free(ctx, needed)
			p.held.unwatch(needed, free)
			if free {
				continue
			}
		}

		select {
		case <-ctx.Done():
		case <-time.After(awaitPoll):
		}
	}
	return false
}

const lockAccount = `
SELECT FROM accounts WHERE id = $1 AND tenant_id = $2 FOR NO KEY UPDATE`

const lockPayment = `
SELECT FROM payments WHERE id = $1 AND tenant_id = $2 FOR NO KEY UPDATE`

// free queues for the row like every transaction, for at most 200 ms, and reports whether its turn
// came, or whether only our own transactions have the row. Only looking whether the row is locked
// right now would find a busy account always locked by one payment or another.
func (p *Processor) free(ctx context.Context, r row) bool {
	ctx = context.WithoutCancel(ctx) // a statement that is cancelled costs its connection
	if err := p.lock(ctx, r); !timedOut(err) {
		return err == nil
	}

	kept, _, err := p.keptOf(ctx, []rowKey{r.rowKey}, r.payment)
	return err == nil && len(kept) == 0
}

func (p *Processor) lock(ctx context.Context, r row) error {
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()

	statement := lockAccount
	if r.payment {
		statement = lockPayment
	}
	var batch pgx.Batch
	batch.Queue(lockPatience)
	batch.Queue(statement, [16]byte(r.id), [16]byte(r.tenant))
	return tx.SendBatch(ctx, &batch).Close()
}

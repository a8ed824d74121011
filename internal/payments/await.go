package payments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Advanced: skip this file at a first reading.
//
// Another session may lock an account and keep it: psql in an open transaction, an instance that
// froze. A batch waits 200 ms for a row, then it asks who has it. If one of our own transactions
// does, slow as its COMMIT may be, the batch waits on, as it should. If somebody else does, it runs
// again without the requests that need this account. Until the account is free, later requests
// for it are set apart from the start: they wait in Await, without a transaction or a committer.
//
// No request holds one account while it waits for a held one, so there is no deadlock: Await locks
// that one row alone and releases it at once.
const (
	lockPatience = `SET LOCAL lock_timeout = '200ms'`
	lockDefault  = `SET LOCAL lock_timeout TO DEFAULT`

	awaitTimeout = 5 * time.Second // how long a request waits for its accounts; the handler has 8 s
	awaitPoll    = 25 * time.Millisecond
	maxAwaiting  = 1000 // requests in Await; beyond that they stay Busy
	maxWatched   = 4    // accounts that are watched at a time, each on a connection
)

// blockedError is a batch that could not lock one of these accounts: the first that exists. Nothing
// was done. It does not unwrap to the server's error, which CommitOnce would retry.
type blockedError struct {
	accounts []accountKey
	cause    error
}

func (e *blockedError) Error() string {
	return fmt.Sprintf("an account is locked by another session: %v", e.cause)
}

// timedOut reports whether a statement waited too long for a lock.
func timedOut(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "55P03"
}

// Await waits until no account that r needs is held, for at most 5 s, and reports whether that is
// so. Call it for a request that was Busy, and submit the request again if it returns true.
func (p *Processor) Await(ctx context.Context, r Request) bool {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()

	if !p.held.enter() {
		return false
	}
	defer p.held.leave()

	for ctx.Err() == nil {
		account, found := p.held.of(r)
		if !found {
			return true
		}

		// One request watches an account, the others poll what it found.
		if p.held.watch(account) {
			free := p.free(ctx, account)
			p.held.unwatch(account, free)
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
SELECT FROM accounts WHERE id = $1 FOR NO KEY UPDATE`

// free queues for the row like every transaction, for at most 200 ms, and reports whether its turn
// came, or whether only our own transactions have the row. Only looking whether the row is locked
// right now would find a busy account always locked by one payment or another.
func (p *Processor) free(ctx context.Context, a accountKey) bool {
	ctx = context.WithoutCancel(ctx) // a statement that is cancelled costs its connection
	if err := p.lock(ctx, a.id); !timedOut(err) {
		return err == nil
	}

	kept, err := p.keptOf(ctx, []accountKey{a})
	return err == nil && len(kept) == 0
}

func (p *Processor) lock(ctx context.Context, id uuid.UUID) error {
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()

	var batch pgx.Batch
	batch.Queue(lockPatience)
	batch.Queue(lockAccount, [16]byte(id))
	return tx.SendBatch(ctx, &batch).Close()
}

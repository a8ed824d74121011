package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Beginner starts transactions, such as *pgxpool.Pool. It must not use a broken connection again.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Attempt is Claim, the work, Store. It is called with a new transaction each time it is run.
type Attempt func(context.Context, pgx.Tx) ([]Answer, error)

// ErrOutcomeUnknown means that COMMIT was sent but its outcome could not be determined. The work
// may be done or not; a repeat under the same key finds out. Answer 503 with Retry-After.
var ErrOutcomeUnknown = errors.New("the outcome of the commit is unknown")

// See "Timeouts that belong together" in doc.go.
const (
	commitTimeout   = 5 * time.Second // longer means that the server is gone, or its standby
	outcomeTimeout  = 3 * time.Second // then the client is told that the outcome is unknown
	rollbackTimeout = time.Second

	maxAttempts = 4 // the first and three more, for a transaction that lost a race
)

// CommitOnce runs attempt in a READ COMMITTED transaction and commits it, until the outcome is
// known.
//
// It runs attempt again, from the start and in a new transaction, when the database reports a lost
// race (40001, 40P01, 55P03, or 23505, which means claim again), and when the outcome of COMMIT is
// unknown: a lost connection, a deadline, a server that shut down or stopped waiting for its
// standby (see OnNotice). Claim makes that safe: if the commit took place the second run finds the
// stored response, if not the key is free. An answer that the first run made itself is then a first
// answer, not a replay.
//
// Every answer, a replay too, is as durable as the server makes a write: its synchronous standby
// has it. An error means that nothing was done, except for ErrOutcomeUnknown. ctx ends the attempt
// but never the COMMIT: CommitOnce returns at most 9 s after ctx ends.
func CommitOnce(ctx context.Context, db Beginner, attempt Attempt) ([]Answer, error) {
	var lost error

	for n := range maxAttempts {
		if n > 0 {
			if err := pause(ctx, n); err != nil {
				break
			}
		}

		answers, unknown, err := try(ctx, context.WithoutCancel(ctx), retryBegin{db}, attempt)
		switch {
		case err == nil:
			return answers, nil
		case unknown:
			return findOutcome(ctx, db, attempt, answers, err)
		case !lostRace(err):
			return nil, err
		}
		lost = err
	}
	return nil, lost
}

// try runs attempt in one transaction and commits it, the COMMIT on commitCtx. unknown means that
// COMMIT was sent and err does not tell its outcome.
func try(
	ctx, commitCtx context.Context, db Beginner, attempt Attempt,
) (as []Answer, unknown bool, err error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, false, fmt.Errorf("begin: %w", err)
	}

	// Before COMMIT this frees the keys at once, even when ctx ended the attempt or attempt panics.
	// After COMMIT it does nothing.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // a failure closes the connection, which rolls back as well
	}()

	allowCancel(tx.Conn())
	as, err = attempt(ctx, tx)
	if err != nil {
		return nil, false, err
	}

	if onlyReplays(as) {
		if _, err := tx.Exec(ctx, writeForStandby); err != nil {
			return nil, false, fmt.Errorf("write for the standby: %w", err)
		}
	}

	// Crash point: nothing is committed, the claim dies with the connection, a repeat does the
	// work.
	if err := commit(commitCtx, tx); err != nil {
		return as, !definite(err), fmt.Errorf("commit: %w", err)
	}
	// Crash point: committed, but no client was told. A repeat is a replay.
	return as, false, nil
}

// lostRace reports whether retrying the attempt may succeed.
func lostRace(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}

	switch e.Code {
	case "40001", "40P01", "55P03": // serialization_failure, deadlock_detected, lock_not_available
		return true
	case "23505": // unique_violation: another session wrote between our look and our insert
		return true
	}
	return false
}

// pause waits before attempt n, with full jitter so that the losers of a race do not meet again.
func pause(ctx context.Context, n int) error {
	t := time.NewTimer(time.Millisecond + rand.N(10*time.Millisecond<<min(n, 5)))
	defer t.Stop()

	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

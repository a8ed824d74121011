package idempotency

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Beginner starts transactions. A connection that broke is not used for another one. A *pgxpool.Pool is one.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// ErrOutcomeUnknown says that COMMIT was sent and that nobody could be asked what became of it. The work may be done or
// not; a repeat under the same key finds out. Answer 503 with Retry-After.
var ErrOutcomeUnknown = errors.New("the outcome of the commit is unknown")

// The ladder, so that every client gets an answer and a drain ends by itself: a handler has 8 s. A COMMIT sent at their end
// has 5 s more, asking what became of it 3 s, its own COMMITs included, and the last rollback 1 s. That makes 17 s, less
// than the 20 s in which the server must have written the answer, and those are less than the 25 s of the drain.
const (
	commitTimeout   = 5 * time.Second // a COMMIT that waits longer has lost its server, or the server its standby
	settleTimeout   = 3 * time.Second // how long an unknown COMMIT is asked about before the client is told so
	rollbackTimeout = time.Second
	maxAttempts     = 4 // the first one and three more, for a transaction that lost a race
)

// Settle runs attempt in a transaction under READ COMMITTED and commits it, until the outcome is known.
//
// attempt is Claim, the work, Store. It is run again, from the start and in a new transaction, when the database says
// that it lost a race (40001, 40P01, 55P03, and 23505 which means claim again), and when the outcome of COMMIT is unknown: a
// lost connection, a deadline, a server that shut down or no longer waited for its standby (see OnNotice). That is safe
// because of Claim: if the commit took place the second run finds the stored response, if it did not the key is free. An
// answer that the first run made itself is a first answer then, not a replay.
//
// Every answer, a replay too, is as durable as the server is set up to make a write: its synchronous standby has it. An
// error means that nothing was done, but for ErrOutcomeUnknown. ctx ends the attempt, never the COMMIT: Settle returns at most 9 s after it.
func Settle(ctx context.Context, db Beginner, attempt func(context.Context, pgx.Tx) ([]Answer, error)) ([]Answer, error) {
	var lost error
	for n := range maxAttempts {
		if n > 0 {
			if err := pause(ctx, n); err != nil {
				break
			}
		}
		answers, unknown, err := once(ctx, context.WithoutCancel(ctx), living{db}, attempt)
		switch {
		case err == nil:
			return answers, nil
		case unknown:
			return settle(ctx, db, attempt, answers, err)
		case !lostRace(err):
			return nil, err
		}
		lost = err
	}
	return nil, lost
}

// once runs one attempt in one transaction and commits it, the latter on commitCtx. unknown: COMMIT was sent and err does not
// say what became of it.
func once(ctx, commitCtx context.Context, db Beginner, attempt func(context.Context, pgx.Tx) ([]Answer, error)) (as []Answer, unknown bool, err error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, false, fmt.Errorf("begin: %w", err)
	}
	// After COMMIT this does nothing. Before it, it frees the keys at once, even when ctx is what ended the attempt, and
	// even when attempt panics.
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = tx.Rollback(ctx) // the connection is closed when it fails, which rolls back as well
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
	// Crash point: nothing is committed, the claim dies with the connection, a repeat does the work.
	if err := commit(commitCtx, tx); err != nil {
		return as, !definite(err), fmt.Errorf("commit: %w", err)
	}
	// Crash point: it is committed but nobody was told. A repeat is a replay.
	return as, false, nil
}

// maxDead is how many connections in a row may turn out to be dead at BEGIN: as many as a pool usually has.
const maxDead = 20

// living begins on connections that live. A pool hands out what it used a moment ago without a look at it, and since then the server may
// have ended it. Nothing was done on it yet, and the pool drops it, so the next one is tried. Not for settle, which asks again by itself.
type living struct{ Beginner }

func (l living) BeginTx(ctx context.Context, o pgx.TxOptions) (tx pgx.Tx, err error) {
	for range maxDead {
		tx, err = l.Beginner.BeginTx(ctx, o)
		if err == nil || ctx.Err() != nil || !died(err) {
			break
		}
	}
	return tx, err
}

// died says whether a connection that was there broke under BEGIN. A server that takes no connection, or answers and goes on living,
// would say the same again.
func died(err error) bool {
	var connect *pgconn.ConnectError
	var e *pgconn.PgError
	var network net.Error
	switch {
	case errors.As(err, &connect):
		return false
	case errors.As(err, &e):
		return e.SeverityUnlocalized == "FATAL"
	}
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// settle finds out what became of an unknown COMMIT by doing it again. mine are the answers of that attempt,
// and of each later one whose COMMIT may have taken place as well.
func settle(ctx context.Context, db Beginner, attempt func(context.Context, pgx.Tx) ([]Answer, error), mine []Answer, cause error) ([]Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout) // a client that left must not leave it open
	defer cancel()
	for n := 1; ; n++ {
		answers, unknown, err := once(ctx, ctx, db, attempt)
		if err == nil || unknown {
			still := adopt(answers, mine)
			if err == nil && !still {
				return answers, nil
			}
			mine = answers
		}
		if err != nil {
			cause = err
		}
		// The server that has the old transaction may still be working on it, or no server answers.
		if pause(ctx, n) != nil {
			return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause)
		}
	}
}

// adopt turns those of answers into first answers that the attempts before made themselves. still: at least one of them
// is held by the backend of such an attempt; it stays a first answer to be.
func adopt(answers, mine []Answer) (still bool) {
	for i := range answers {
		if i >= len(mine) || mine[i].State != New {
			continue
		}
		switch a := &answers[i]; {
		case a.State == InProgress:
			*a, still = mine[i], true
		case a.State == Replay && a.RequestID == mine[i].RequestID:
			a.State = New
		}
	}
	return still
}

// lostRace says whether the same attempt, run again, may well succeed.
func lostRace(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case "40001", "40P01", "55P03": // serialization_failure, deadlock_detected, lock_not_available
		return true
	case "23505": // unique_violation: somebody wrote between this attempt's look and its insert
		return true
	}
	return false
}

// pause waits before attempt n, with full jitter so that the losers of one race do not meet again.
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

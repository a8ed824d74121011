package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/client"
)

// worker takes one step of one order at a time. Any number may run, in any number of processes.
type worker struct {
	db  *pgxpool.Pool
	api *client.Client

	// lease is how long an order waits for a worker that died with it. The call, the commit and a
	// note of when to try again take at most a third each, so a live worker is done by then. One
	// that was frozen finds its token gone.
	lease time.Duration
}

const (
	idlePoll     = 50 * time.Millisecond
	firstPause   = 50 * time.Millisecond // after a try that failed, doubled each time, with jitter
	longestPause = 30 * time.Second
)

// run works until ctx ends. A call that this cuts off is unknown, like any other.
func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil {
		o, err := w.claim(ctx)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			sleep(ctx, idlePoll)
		case err != nil && ctx.Err() == nil:
			slog.WarnContext(ctx, "claim failed", "error", err)
			sleep(ctx, time.Second)
		case err == nil:
			w.handle(ctx, o)
		}
	}
	return nil
}

// Uses orders_due. It is committed when it returns, and so is the intent to take the step: what was
// never claimed was never sent.
const claimDue = `
UPDATE orders SET token = token + 1, tries = tries + 1, next_try_at = now() + $1::interval,
  first_tried_at = coalesce(first_tried_at, now())
WHERE id = (
  SELECT id FROM orders WHERE next_try_at <= now() ORDER BY next_try_at LIMIT 1
  FOR NO KEY UPDATE SKIP LOCKED)
RETURNING ` + columns

func (w *worker) claim(ctx context.Context) (order, error) {
	return one(ctx, w.db, claimDue, w.lease)
}

// handle takes one step, or says when to try again.
func (w *worker) handle(ctx context.Context, o order) {
	err := w.take(ctx, o)
	if err == nil || errors.Is(err, errLost) {
		return
	}
	if !errors.Is(err, errNotYet) {
		slog.WarnContext(ctx, "step failed",
			"order", o.ID, "state", o.State, "tries", o.Tries, "error", err)
	}

	// If this fails too, the order is tried again when the lease is over.
	if err := w.later(ctx, o, err); err != nil {
		slog.WarnContext(ctx, "cannot say when to try again", "order", o.ID, "error", err)
	}
}

var errLost = errors.New("another worker has the order")

// Empty unless the order is still ours.
const lockOurs = `
SELECT ` + columns + ` FROM orders WHERE id = $1 AND token = $2 FOR NO KEY UPDATE`

// take takes the step that the order needs.
func (w *worker) take(ctx context.Context, o order) error {
	step, m := saga[o.State], move{}
	key := step.keyFor(o)

	// Crash point: claimed, not called. The next worker cannot tell, and calls under the same key.
	if step.call != nil {
		call, cancel := context.WithTimeout(ctx, w.lease/3)
		defer cancel()

		var err error
		if m, err = step.call(call, w, o, key); err != nil {
			return err
		}
	}

	// Crash point: called, not recorded. The next worker calls under the same key, and is told the
	// same.
	commit, cancel := w.commitContext(ctx)
	defer cancel()

	return pgx.BeginFunc(commit, w.db, func(tx pgx.Tx) error {
		ours, err := one(commit, tx, lockOurs, o.ID, o.Token)
		if errors.Is(err, pgx.ErrNoRows) {
			return errLost
		}
		if err != nil {
			return fmt.Errorf("lock order: %w", err)
		}

		if step.work != nil {
			if m, err = step.work(commit, tx, ours, key); err != nil {
				return err
			}
		}
		if !slices.Contains(step.to, m.to) {
			return fmt.Errorf("%w: no step leads from %s to %s", errAskOperator, o.State, m.to)
		}
		return advance(commit, tx, ours, m)
	})
	// Crash point: committed, but the reply was lost. The claim is over, so later changes nothing.
}

const tryLater = `
UPDATE orders SET last_error = $3,
  next_try_at = CASE WHEN $4 THEN 'infinity' ELSE now() + $5::interval END
WHERE id = $1 AND token = $2`

// later lets go of an order whose step has not ended.
func (w *worker) later(ctx context.Context, o order, cause error) error {
	commit, cancel := w.commitContext(ctx)
	defer cancel()

	pause := min(firstPause<<min(o.Tries, 20), longestPause)
	_, err := w.db.Exec(commit, tryLater, o.ID, o.Token, cause.Error(),
		errors.Is(cause, errAskOperator), pause/2+rand.N(pause/2))
	return err
}

// commitContext does not end with ctx: a shutdown must not cut off a COMMIT.
func (w *worker) commitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), w.lease/3)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A claim is visible to everybody as an advisory lock with these numbers. Taking the lock to find out would give a real
// attempt at the same moment a false "in progress".
const keyLocked = `
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32) | objid::bigint = $1::bigint)`

// Never more than what is kept.
const promise = `
SELECT least($1::interval, (SELECT keep FROM idempotency_retention WHERE only_row))`

// Peek tells what Claim would find for r, without taking its lock: New when the key is unknown, InProgress, Replay with
// the stored response, Mismatch or Unreadable. A zero Fingerprint is not compared: then every finished key is Replay.
//
// A finished key costs one look-up. pg_locks, which takes every lock manager's latch, is read only when
// there is no row, and the table once more after it, in a later statement: a holder that let go of the
// lock in between has committed or rolled back by then. tx must run under READ COMMITTED.
//
// What it finds is visible, which is less than what a repeat is promised: a failover may take it
// back. To answer a repeat, use Find.
func Peek(ctx context.Context, tx pgx.Tx, r Request, retention time.Duration) (Answer, error) {
	retention = orDefault(retention)
	var locked bool
	var promised time.Duration
	found := records{}
	hash := hashKey(r.TenantID, r.ClientID, r.Key)

	// The second time round the look-up may need a day that did not exist the first time.
	var first, second pgx.Batch
	first.Queue(promise, retention).QueryRow(func(row pgx.Row) error { return row.Scan(&promised) })
	queueLookUp(&first, [][]byte{hash}, retention, found)
	second.Queue(keyLocked, lockNumber(hash)).QueryRow(func(row pgx.Row) error { return row.Scan(&locked) })
	second.Queue(acceptInvalidations)
	queueLookUp(&second, [][]byte{hash}, retention, found)
	for _, batch := range []*pgx.Batch{&first, &second} {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return Answer{}, fmt.Errorf("look at idempotency key: %w", err)
		}
		if k := found.of(r); k != nil {
			if r.Fingerprint == (Fingerprint{}) {
				r.Fingerprint = Fingerprint{k.version, [32]byte(k.fingerprint)}
			}
			return k.answer(r, promised), nil
		}
	}

	if locked {
		return Answer{State: InProgress}, nil
	}
	return Answer{State: New}, nil
}

// Find is Peek for an answer that is to be sent to a repeat: a Replay is as durable as one of Settle, and what cannot be made so
// is ErrOutcomeUnknown. db is the primary's.
func Find(ctx context.Context, db Beginner, r Request, retention time.Duration) (Answer, error) {
	as, err := Settle(ctx, db, func(ctx context.Context, tx pgx.Tx) ([]Answer, error) {
		a, err := Peek(ctx, tx, r, retention)
		return []Answer{a}, err
	})
	if err != nil {
		return Answer{}, err
	}
	return as[0], nil
}

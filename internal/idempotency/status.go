package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A claim is visible to every session as an advisory lock with these numbers. Taking the lock to
// find out would give a real attempt at the same moment a false "in progress".
const keyLocked = `
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32) | objid::bigint = $1::bigint)`

// Never more than what is kept.
const promise = `
SELECT least($1::interval, (SELECT keep FROM idempotency_retention WHERE only_row))`

// Peek returns what Claim would find for r, without taking its lock: New when the key is unknown,
// InProgress, Replay with the stored response, Mismatch or UnknownFingerprintVersion. A zero
// Fingerprint is not compared: then every finished key is a Replay.
//
// A finished key costs one look-up. Only when there is no row does Peek read pg_locks, which takes
// every partition of the lock table, and then the table once more in a later statement: a holder
// that released the lock in between has committed or rolled back by then. tx must be READ
// COMMITTED.
//
// What Peek finds is visible, which is less than what a repeat is promised: a failover may take it
// back. To answer a repeat, use Find.
func Peek(ctx context.Context, tx pgx.Tx, r Request, retention time.Duration) (Answer, error) {
	retention = orDefault(retention)

	var locked bool
	var promised time.Duration
	found := records{}
	hash := hashKey(r.TenantID, r.ClientID, r.Key)

	var first, second pgx.Batch
	first.Queue(promise, retention).QueryRow(func(row pgx.Row) error { return row.Scan(&promised) })
	queueLookUp(&first, [][]byte{hash}, retention, found)

	// The second look-up may need a day that did not exist at the first one.
	second.Queue(keyLocked, lockNumber(hash)).
		QueryRow(func(row pgx.Row) error { return row.Scan(&locked) })
	second.Queue(acceptInvalidations)
	queueLookUp(&second, [][]byte{hash}, retention, found)

	for _, batch := range []*pgx.Batch{&first, &second} {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return Answer{}, fmt.Errorf("look up idempotency key: %w", err)
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

// Find is Peek for an answer that is sent to a repeat: a Replay is as durable as one of CommitOnce.
// If it cannot be made so, the error is ErrOutcomeUnknown. db must be the primary.
func Find(ctx context.Context, db Beginner, r Request, retention time.Duration) (Answer, error) {
	as, err := CommitOnce(ctx, db, func(ctx context.Context, tx pgx.Tx) ([]Answer, error) {
		a, err := Peek(ctx, tx, r, retention)
		return []Answer{a}, err
	})
	if err != nil {
		return Answer{}, err
	}
	return as[0], nil
}

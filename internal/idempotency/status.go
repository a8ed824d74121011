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

// Peek tells what Claim would find for r, without taking its lock: New when the key is unknown, InProgress, Replay with
// the stored response, Mismatch or Unreadable. A zero Fingerprint is not compared: then every finished key is Replay.
//
// The lock is read first and the table second, in a later statement: whoever lets go of the lock in between has committed
// or rolled back before the table is read. tx must run under READ COMMITTED.
func Peek(ctx context.Context, tx pgx.Tx, r Request, retention time.Duration) (Answer, error) {
	retention = orDefault(retention)
	var locked bool
	found := records{}
	hash := hashKey(r.TenantID, r.ClientID, r.Key)
	var batch pgx.Batch
	batch.Queue(keyLocked, lockNumber(hash)).QueryRow(func(row pgx.Row) error { return row.Scan(&locked) })
	queueLookUp(&batch, [][]byte{hash}, retention, found)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return Answer{}, fmt.Errorf("look at idempotency key: %w", err)
	}
	k := found.of(r, hash)
	switch {
	case k != nil:
		if r.Fingerprint == (Fingerprint{}) {
			r.Fingerprint = Fingerprint{k.version, [32]byte(k.fingerprint)}
		}
		return k.answer(r, retention), nil
	case locked:
		return Answer{State: InProgress}, nil
	}
	return Answer{State: New}, nil
}

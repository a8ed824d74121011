package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultRetention is how long an answer is promised to be kept: what failed on Friday night can
// still be repeated on Monday.
const DefaultRetention = 72 * time.Hour

// ErrIsolation means that Claim was called in a transaction that is not READ COMMITTED.
var ErrIsolation = errors.New("idempotency keys must be claimed under READ COMMITTED")

// Takes the locks one after the other, in the order of the keys, without waiting. The statement
// also returns the isolation level, since under any other the look-up would see the past, and the
// retention that may be promised: never more than what is kept.
const lockKeys = `
SELECT pg_try_advisory_xact_lock(h), current_setting('transaction_isolation'), now(),
       least($2::interval, (SELECT keep FROM idempotency_retention WHERE only_row))
FROM unnest($1::bigint[]) WITH ORDINALITY t(h, i) ORDER BY i`

// The look-up must be planned with every partition that may hold the key, and Postgres plans from
// the backend's cached description of the table. Say an earlier attempt stored the key in the
// partition of day D. D was attached before that, and the attempt committed before we got its lock,
// so the invalidation of our cache was sent before this statement runs. But a backend processes
// invalidations only when it locks a relation that its transaction has not locked yet. Usually that
// is the look-up's own lock on the table. It is not if this transaction has touched the table
// before: the driver prepares a statement inside the transaction that first uses it, and a caller
// may claim twice. Then the old plan would serve, and the key would pay again (seen on Postgres 15
// and 17). pg_partition_ancestors opens and closes a catalogue, so it always takes a new lock: from
// here on the cache is as new as our advisory locks.
//
// It costs some 5 µs a transaction. Reading the retention in lockKeys and lookUpKeys costs another
// 20 to 25 µs, whatever the number of keys.
const acceptInvalidations = `
SELECT FROM pg_partition_ancestors('idempotency_keys')`

// Claim takes the keys of rs for this transaction. It returns one answer per request, in order, and
// never waits. Of two requests in rs with the same key the second is InProgress.
//
// tx must be READ COMMITTED and must not be inside a savepoint. retention is what Expires promises,
// see ExtendRetention; zero means DefaultRetention. Claim costs one round trip and three
// statements, whatever the length of rs.
func Claim(
	ctx context.Context, tx pgx.Tx, rs []Request, retention time.Duration,
) ([]Answer, error) {
	retention = orDefault(retention)
	hashes := make([][]byte, len(rs))
	l := locks{numbers: make([]int64, len(rs))}
	for i, r := range rs {
		if r.Fingerprint.Version == 0 {
			return nil, fmt.Errorf("claim idempotency keys: request %d has no fingerprint", i)
		}
		hashes[i] = hashKey(r.TenantID, r.ClientID, r.Key)
		l.numbers[i] = lockNumber(hashes[i])
	}

	// Lock, then look. The order of these three statements is the whole proof; see doc.go.
	found := records{}
	var batch pgx.Batch
	batch.Queue(lockKeys, l.numbers, retention).Query(l.read)
	batch.Queue(acceptInvalidations)
	queueLookUp(&batch, hashes, retention, found)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("claim idempotency keys: %w", err)
	}

	return l.answers(rs, found), nil
}

// locks is what lockKeys returned: which locks this transaction got, and when.
type locks struct {
	numbers  []int64
	taken    []bool
	now      time.Time
	promised time.Duration
}

func (l *locks) read(rows pgx.Rows) error {
	var got bool
	var isolation string

	_, err := pgx.ForEachRow(rows, []any{&got, &isolation, &l.now, &l.promised}, func() error {
		if isolation != "read committed" {
			return fmt.Errorf("%w, not under %s", ErrIsolation, isolation)
		}
		l.taken = append(l.taken, got)
		return nil
	})
	return err
}

// answers decides what each request gets, given the keys that were found finished.
func (l *locks) answers(rs []Request, found records) []Answer {
	answers := make([]Answer, len(rs))

	// Advisory locks are re-entrant, so the second request of a key in one batch gets it as well.
	seen := make(map[int64]bool, len(rs))

	for i, r := range rs {
		k := found.of(r)
		switch {
		case k != nil: // a finished key is finished, even if the lock is held right now
			answers[i] = k.answer(r, l.promised)
		case !l.taken[i] || seen[l.numbers[i]]:
			answers[i] = Answer{State: InProgress}
		default:
			expires := l.now.Add(l.promised)
			answers[i] = Answer{State: New, RequestID: r.RequestID, Date: l.now, Expires: expires}
		}

		seen[l.numbers[i]] = true
	}
	return answers
}

func orDefault(retention time.Duration) time.Duration {
	if retention == 0 {
		return DefaultRetention
	}
	return retention
}

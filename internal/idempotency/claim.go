package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultRetention is how long an answer is promised to be kept: a failure of Friday night can still be repeated on Monday.
const DefaultRetention = 72 * time.Hour

// ErrIsolation says that Claim was called in a transaction that does not run under READ COMMITTED.
var ErrIsolation = errors.New("idempotency keys can be claimed under READ COMMITTED only")

// One lock after the other, in the order asked for, and none waits. The isolation level rides along: under any other,
// the look-up would see the past. And so does what may be promised: never more than what is kept.
const lockKeys = `
SELECT pg_try_advisory_xact_lock(h), current_setting('transaction_isolation'), now(),
       least($2::interval, (SELECT keep FROM idempotency_retention WHERE only_row))
FROM unnest($1::bigint[]) WITH ORDINALITY t(h, i) ORDER BY i`

// The look-up must be planned with every partition that may hold the key, and Postgres plans from the backend's cached description of
// the table. Say an earlier attempt stored the key in the partition of day D. D was attached before that, and the attempt
// committed before we got its lock, so the invalidation of our cache was sent before this statement runs. But a backend
// processes invalidations only when it locks a relation that its transaction has not locked yet. Usually that is the look-up's own
// lock on the table. It is not if this transaction has touched the table before: the driver prepares a statement inside the
// transaction that first uses it, and a caller may claim twice. Then the old plan would serve, and the key would pay again
// (seen on Postgres 15 and 17). pg_partition_ancestors opens a catalogue and closes it, so it always takes a
// new lock: from here on the cache is as new as our advisory locks.
//
// It costs some 5 µs a transaction, and to read what is kept in lockKeys and lookUpKeys another 20 to 25, whatever the number of keys.
const acceptInvalidations = `
SELECT FROM pg_partition_ancestors('idempotency_keys')`

// A later statement than lockKeys: its snapshot is taken when the locks are held. Each day's index is walked once, in the order of the hashes, and a
// key that is new has no row (measured, 42 keys, 10 million stored: 15 µs a key against 20 with a nested loop).
//
// It goes back to the day of the oldest answer that is kept, as of now: another instance may have promised more than this one
// since it started. The days before are not looked at. There is no last day on purpose: now() is when this transaction began, and an answer of a
// transaction that began after midnight may already stand under tomorrow.
const lookUpKeys = `
SELECT tenant_id, client_id, key, fingerprint_version, fingerprint, request_id, created_at, status, content_type, location, body
FROM idempotency_keys
WHERE key_hash = ANY ($1::bytea[])
  AND day >= ((now() AT TIME ZONE 'utc') - coalesce((SELECT keep FROM idempotency_retention WHERE only_row), $2::interval))::date`

// Claim takes the keys of rs for this transaction and tells for each what is to be done: it returns one answer per
// request, in order. Nobody waits for anybody. Of two requests with one key in rs the second is InProgress.
//
// tx must run under READ COMMITTED and must not be inside a savepoint. retention is what Expires promises, see ExtendRetention; zero:
// DefaultRetention. It costs one round trip and three statements, whatever the length of rs.
func Claim(ctx context.Context, tx pgx.Tx, rs []Request, retention time.Duration) ([]Answer, error) {
	retention = orDefault(retention)
	for i, r := range rs {
		if r.Fingerprint.Version == 0 {
			return nil, fmt.Errorf("claim idempotency keys: request %d has no fingerprint", i)
		}
	}
	hashes := hashesOf(rs)
	locks := lockNumbers(hashes)
	locked := make([]bool, 0, len(rs))
	var now time.Time
	var promised time.Duration
	found := records{}

	var batch pgx.Batch
	batch.Queue(lockKeys, locks, retention).Query(func(rows pgx.Rows) error {
		var ok bool
		var isolation string
		_, err := pgx.ForEachRow(rows, []any{&ok, &isolation, &now, &promised}, func() error {
			if isolation != "read committed" {
				return fmt.Errorf("%w, not under %s", ErrIsolation, isolation)
			}
			locked = append(locked, ok)
			return nil
		})
		return err
	})
	batch.Queue(acceptInvalidations)
	queueLookUp(&batch, hashes, retention, found)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("claim idempotency keys: %w", err)
	}

	answers := make([]Answer, len(rs))
	var taken map[int64]bool // the lock is re-entrant: a key's second request in one batch gets it as well
	if len(rs) > 1 {
		taken = make(map[int64]bool, len(rs))
	}
	for i, r := range rs {
		k := found.of(r)
		switch {
		case k != nil: // done is done, whoever holds the lock now
			answers[i] = k.answer(r, promised)
		case !locked[i] || taken[locks[i]]:
			answers[i] = Answer{State: InProgress}
		default:
			answers[i] = Answer{State: New, RequestID: r.RequestID, Date: now, Expires: now.Add(promised)}
		}
		if taken != nil {
			taken[locks[i]] = true
		}
	}
	return answers, nil
}

// record is a row of lookUpKeys.
type record struct {
	identity
	version     int16
	fingerprint []byte
	requestID   string
	createdAt   time.Time
	status      int16
	contentType string
	location    string
	body        []byte
}

// answer judges a finished key in the light of a request for it.
func (k *record) answer(r Request, promised time.Duration) Answer {
	a := Answer{State: Replay, RequestID: k.requestID, Date: k.createdAt, Expires: k.createdAt.Add(promised)}
	f, known := r.fingerprintOf(k.version)
	switch {
	case !known:
		a.State = Unreadable
		return a
	case string(k.fingerprint) != string(f.Sum[:]):
		a.State = Mismatch
		return a
	}
	a.Response = Response{Status: int(k.status), ContentType: k.contentType, Location: k.location, Body: k.body}
	return a
}

// identity is what a key is: its hash only finds it. Two keys may share a hash, if hardly ever.
type identity struct {
	tenantID, clientID [16]byte
	key                string
}

type records map[identity]*record

// of returns the record of a request's key; nil: there is none.
func (ks records) of(r Request) *record {
	return ks[identity{r.TenantID, r.ClientID, r.Key}]
}

func queueLookUp(batch *pgx.Batch, hashes [][]byte, retention time.Duration, found records) {
	batch.Queue(lookUpKeys, hashes, retention).Query(func(rows pgx.Rows) error {
		var k record
		_, err := pgx.ForEachRow(rows, []any{&k.tenantID, &k.clientID, &k.key, &k.version, &k.fingerprint, &k.requestID, &k.createdAt,
			&k.status, &k.contentType, &k.location, &k.body}, func() error {
			// Two, when the retention was raised and an answer counts again that another one had followed.
			if other := found[k.identity]; other == nil || other.createdAt.Before(k.createdAt) {
				one := k
				found[k.identity] = &one
			}
			return nil
		})
		return err
	})
}

func orDefault(retention time.Duration) time.Duration {
	if retention == 0 {
		return DefaultRetention
	}
	return retention
}

func hashesOf(rs []Request) [][]byte {
	hashes := make([][]byte, len(rs))
	for i, r := range rs {
		hashes[i] = hashKey(r.TenantID, r.ClientID, r.Key)
	}
	return hashes
}

func lockNumbers(hashes [][]byte) []int64 {
	ns := make([]int64, len(hashes))
	for i, h := range hashes {
		ns[i] = lockNumber(h)
	}
	return ns
}

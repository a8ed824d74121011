package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DefaultRetention is how long an answer is kept: a failure of Friday night can still be repeated on Monday.
const DefaultRetention = 72 * time.Hour

// ErrIsolation says that Claim was called in a transaction that does not run under READ COMMITTED.
var ErrIsolation = errors.New("idempotency keys can be claimed under READ COMMITTED only")

// One lock after the other, in the order asked for, and none waits. The isolation level rides along: under any other,
// the look-up would see the past.
const lockKeys = `
SELECT pg_try_advisory_xact_lock(h), current_setting('transaction_isolation'), now()
FROM unnest($1::bigint[]) WITH ORDINALITY t(h, i) ORDER BY i`

// A later statement than lockKeys: its snapshot is taken when the locks are held. Each day's index is walked once, in the order of the hashes, and a
// key that is new has no row (measured, 42 keys, 10 million stored: 15 µs a key against 20 with a nested loop). The first live day prunes older
// partitions. There is no last day on purpose: now() is when this transaction began, and an answer of a transaction that began after
// midnight may already stand under tomorrow.
const lookUpKeys = `
SELECT tenant_id, client_id, key, fingerprint_version, fingerprint, request_id, created_at, status, content_type, location, body
FROM idempotency_keys
WHERE key_hash = ANY ($1::bytea[]) AND day >= (now() AT TIME ZONE 'utc')::date - $2::int`

// Claim takes the keys of rs for this transaction and tells for each what is to be done: it returns one answer per
// request, in order. Nobody waits for anybody. Of two requests with one key in rs the second is InProgress.
//
// tx must run under READ COMMITTED and must not be inside a savepoint. Answers are kept for at least retention; zero: DefaultRetention. It costs
// one round trip and two statements, whatever the length of rs.
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
	found := records{}

	var batch pgx.Batch
	batch.Queue(lockKeys, locks).Query(func(rows pgx.Rows) error {
		var ok bool
		var isolation string
		_, err := pgx.ForEachRow(rows, []any{&ok, &isolation, &now}, func() error {
			if isolation != "read committed" {
				return fmt.Errorf("%w, not under %s", ErrIsolation, isolation)
			}
			locked = append(locked, ok)
			return nil
		})
		return err
	})
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
			answers[i] = k.answer(r, retention)
		case !locked[i] || taken[locks[i]]:
			answers[i] = Answer{State: InProgress}
		default:
			answers[i] = Answer{State: New, RequestID: r.RequestID, Date: now, Expires: now.Add(retention)}
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
func (k *record) answer(r Request, retention time.Duration) Answer {
	a := Answer{State: Replay, RequestID: k.requestID, Date: k.createdAt, Expires: k.createdAt.Add(retention)}
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
	batch.Queue(lookUpKeys, hashes, liveDays(retention)).Query(func(rows pgx.Rows) error {
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

// liveDays is how many days before today may hold an answer that is still promised. What was stored at any time of day D
// is found until the end of day D + liveDays, which is at least the retention.
func liveDays(retention time.Duration) int32 {
	const day = 24 * time.Hour
	return int32((retention + day - 1) / day)
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

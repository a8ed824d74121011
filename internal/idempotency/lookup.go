package idempotency

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// record is a row of lookUpKeys: a finished key.
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

// identity is what a key is. Its hash only finds it: two keys may share one, however rarely.
type identity struct {
	tenantID, clientID [16]byte
	key                string
}

type records map[identity]*record

// of returns the record of the request's key, or nil.
func (ks records) of(r Request) *record {
	return ks[identity{r.TenantID, r.ClientID, r.Key}]
}

// Runs after lockKeys, so its snapshot is taken while the locks are held. Each day's index is
// walked once, in the order of the hashes, and a new key has no row (measured with 42 keys and 10
// million stored: 15 µs a key, against 20 with a nested loop).
//
// It goes back to the day of the oldest answer that is kept as of now, since another instance may
// have promised more than this one since it started. Earlier days are not read. There is no last
// day on purpose: now() is when this transaction began, and a transaction that began after midnight
// may already have stored its answer under tomorrow.
const lookUpKeys = `
SELECT tenant_id, client_id, key, fingerprint_version, fingerprint, request_id, created_at,
       status, content_type, location, body
FROM idempotency_keys
WHERE key_hash = ANY ($1::bytea[])
  AND day >= ((now() AT TIME ZONE 'utc')
            - coalesce((SELECT keep FROM idempotency_retention WHERE only_row), $2::interval))::date`

// queueLookUp adds lookUpKeys to the batch; its rows go into found.
func queueLookUp(batch *pgx.Batch, hashes [][]byte, retention time.Duration, found records) {
	batch.Queue(lookUpKeys, hashes, retention).Query(func(rows pgx.Rows) error {
		var k record
		columns := []any{
			&k.tenantID, &k.clientID, &k.key, &k.version, &k.fingerprint, &k.requestID, &k.createdAt,
			&k.status, &k.contentType, &k.location, &k.body,
		}

		_, err := pgx.ForEachRow(rows, columns, func() error {
			// There are two when the retention was raised and an old answer counts again although a
			// newer one had followed it. The newer one counts.
			if other := found[k.identity]; other == nil || other.createdAt.Before(k.createdAt) {
				newest := k
				found[k.identity] = &newest
			}
			return nil
		})
		return err
	})
}

// answer is what a finished key means for a request.
func (k *record) answer(r Request, promised time.Duration) Answer {
	a := Answer{
		State: Replay, RequestID: k.requestID, Date: k.createdAt, Expires: k.createdAt.Add(promised),
	}

	// Compared by the rules under which it was stored.
	f, known := r.fingerprintOf(k.version)
	switch {
	case !known:
		a.State = UnknownFingerprintVersion
		return a
	case string(k.fingerprint) != string(f.Sum[:]):
		a.State = Mismatch
		return a
	}

	a.Response = Response{
		Status: int(k.status), ContentType: k.contentType, Location: k.location, Body: k.body,
	}
	return a
}

package idempotency

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The row is written once, complete; day and created_at are the database's. A duplicate key (23505)
// can only mean that something wrote the table without the lock: roll back and claim again.
const storeResponses = `
INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, fingerprint_version, fingerprint,
                              request_id, status, content_type, location, body)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bytea[], $5::smallint[], $6::bytea[],
                     $7::text[], $8::smallint[], $9::text[], $10::text[], $11::bytea[])`

// Store keeps the responses of the New answers, in the transaction that claimed them. Fill in their
// Response first; send them after COMMIT and not before. Store costs one statement.
func Store(ctx context.Context, tx pgx.Tx, rs []Request, as []Answer) error {
	var (
		// [16]byte and not uuid.UUID, which pgx encodes by way of driver.Valuer and text
		// (measured: 2.7 µs a value, against 0.13 µs).
		tenants, clients [][16]byte

		keys, requestIDs, contentTypes, locations []string
		versions, statuses                        []int16
		hashes, fingerprints, bodies              [][]byte
	)

	// One array for each column: unnest makes the rows. A Replay is stored already, and what is Busy
	// must not be.
	for i, a := range as {
		if a.State != New {
			continue
		}
		if s := a.Response.Status; s < 200 || s > 499 {
			return fmt.Errorf("store responses: request %d has status %d: roll it back instead", i, s)
		}

		r := rs[i]
		tenants = append(tenants, r.TenantID)
		clients = append(clients, r.ClientID)
		keys = append(keys, r.Key)
		hashes = append(hashes, hashKey(r.TenantID, r.ClientID, r.Key))
		versions = append(versions, r.Fingerprint.Version)
		fingerprints = append(fingerprints, r.Fingerprint.Sum[:])
		requestIDs = append(requestIDs, r.RequestID)
		statuses = append(statuses, int16(a.Response.Status)) // 200 to 499, checked above
		contentTypes = append(contentTypes, a.Response.ContentType)
		locations = append(locations, a.Response.Location)
		bodies = append(bodies, notNull(a.Response.Body))
	}
	if len(keys) == 0 {
		return nil
	}

	_, err := tx.Exec(ctx, storeResponses, tenants, clients, keys, hashes, versions, fingerprints,
		requestIDs, statuses, contentTypes, locations, bodies)
	if err != nil {
		return fmt.Errorf("store responses: %w", err)
	}
	return nil
}

// notNull returns b, or an empty slice: pgx encodes a nil one as NULL, and the column has none.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

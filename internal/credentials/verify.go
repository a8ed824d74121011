package credentials

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrUnauthorized says that a token is not good. It does not say why: malformed, unknown, revoked and wrong are one.
var ErrUnauthorized = errors.New("unauthorized")

// Identity is who calls, and what they may do.
type Identity struct {
	TenantID     uuid.UUID
	ClientID     uuid.UUID
	CredentialID string // for logs
	Scopes       []string
}

// Has says whether the credential was granted scope.
func (i Identity) Has(scope string) bool { return slices.Contains(i.Scopes, scope) }

const (
	// How long a row that was read is believed, and so how long a revoked credential can still be used.
	trust = 30 * time.Second
	// From then on one caller at a time reads the row again, while the others go on with it: a busy client's hundred
	// requests do not all wait for the database, and fill its pool, whenever the row gets too old.
	renewAfter = 20 * time.Second
	// How long that caller has before another one tries: the first may have been cancelled.
	renewEvery = 2 * time.Second
	// What stands in the cache exists in the database, so guessing cannot fill it.
	cacheSize = 10_000
)

// Verifier turns tokens into identities. It keeps what it reads for up to 30 seconds, rows that exist only, so that
// a request costs no round trip of its own. Safe for concurrent use.
type Verifier struct {
	db  *pgxpool.Pool
	now func() time.Time

	mu   sync.Mutex
	rows map[string]*row
}

// row is a credential that was good when it was read.
type row struct {
	identity Identity
	hash     [sha256.Size]byte
	expires  time.Time
	renew    time.Time
}

// NewVerifier returns a Verifier that reads from db, as the role api_write, and tells the time by now: time.Now, but for
// tests.
func NewVerifier(db *pgxpool.Pool, now func() time.Time) *Verifier {
	return &Verifier{db: db, now: now, rows: map[string]*row{}}
}

// Verify returns whose token bearer is (the Authorization header without "Bearer "), or ErrUnauthorized. Every other
// error means that the database could not be asked: the caller does not know, and answers 503.
func (v *Verifier) Verify(ctx context.Context, bearer string) (Identity, error) {
	token, ok := Parse(bearer)
	if !ok {
		return Identity{}, ErrUnauthorized
	}
	now := v.now()
	known, renew := v.recall(token.id, now)
	if known == nil || renew {
		fresh, err := v.read(ctx, token.id)
		switch {
		case err == nil:
			known = fresh
			v.keep(token.id, fresh, now)
		case known == nil:
			return Identity{}, err
		} // else what is known can be believed a little longer
	}
	var want [sha256.Size]byte // an unknown id is compared as well, and takes as long
	if known != nil {
		want = known.hash
	}
	got := token.hash()
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || known == nil {
		return Identity{}, ErrUnauthorized
	}
	identity := known.identity
	identity.Scopes = slices.Clone(identity.Scopes) // the cached one is shared
	return identity, nil
}

// recall returns the row of id if it can still be believed; renew: it is this caller's turn to read it again.
func (v *Verifier) recall(id string, now time.Time) (r *row, renew bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	r = v.rows[id]
	switch {
	case r == nil, !now.Before(r.expires):
		return nil, false
	case !now.Before(r.renew):
		r.renew = now.Add(renewEvery)
		return r, true
	}
	return r, false
}

// keep takes note of what was read; nil: there is no such credential, or no longer. read is when the reading began, or a
// revocation that took place meanwhile would be believed too long.
func (v *Verifier) keep(id string, r *row, read time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r == nil {
		delete(v.rows, id)
		return
	}
	if _, there := v.rows[id]; !there && len(v.rows) >= cacheSize {
		for other := range v.rows { // any one: it costs its client one look-up
			delete(v.rows, other)
			break
		}
	}
	r.expires, r.renew = read.Add(trust), read.Add(renewAfter)
	v.rows[id] = r
}

// By primary key, twice.
const readCredential = `
SELECT k.tenant_id, c.client_id, c.scopes, c.secret_hash
FROM credentials c JOIN clients k ON k.id = c.client_id
WHERE c.id = $1 AND c.revoked_at IS NULL`

// read returns the credential of that id, nil if there is no good one.
func (v *Verifier) read(ctx context.Context, id string) (*row, error) {
	r := &row{identity: Identity{CredentialID: id}}
	var hash []byte
	err := v.db.QueryRow(ctx, readCredential, id).Scan(&r.identity.TenantID, &r.identity.ClientID, &r.identity.Scopes, &hash)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up credential: %w", err)
	}
	copy(r.hash[:], hash)
	return r, nil
}

package credentials

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrUnauthorized says that a token is not good. It does not say why: malformed, unknown, revoked and wrong are one.
var ErrUnauthorized = errors.New("unauthorized")

// ErrBusy says that more unknown tokens wait for a look-up than the Verifier lets wait. Whether this
// one is good is not known: try again.
var ErrBusy = errors.New("too many unknown credentials are being looked up")

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
	// From then on its next use has it read again in the background; no request waits for that.
	renewAfter = 20 * time.Second
	// How long until a further use asks once more, if the answer has not come: the database may be away.
	renewEvery = 2 * time.Second
	// What stands in the cache existed in the database, so guessing cannot fill it.
	cacheSize = 10_000
)

// Verifier turns tokens into identities. It keeps what it reads for up to 30 seconds, rows that exist only, so that
// a request costs no round trip of its own. Safe for concurrent use.
//
// Tokens that it does not know are looked up many at a time, one query after the other: see lookups.
type Verifier struct {
	now     func() time.Time
	lookups *lookups

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
	v := &Verifier{now: now, rows: map[string]*row{}}
	v.lookups = &lookups{db: db, now: now, found: v.keep, waiting: map[string]*lookup{}}
	return v
}

// Verify returns whose token bearer is (the Authorization header without "Bearer "), or ErrUnauthorized. Every other
// error means that the database could not be asked: the caller does not know, and answers 503.
func (v *Verifier) Verify(ctx context.Context, bearer string) (Identity, error) {
	token, ok := Parse(bearer)
	if !ok {
		return Identity{}, ErrUnauthorized
	}
	known, err := v.row(ctx, token.id)
	if err != nil {
		return Identity{}, err
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

// row returns the row of id: the one that is known while it can be believed, else what the database says.
func (v *Verifier) row(ctx context.Context, id string) (*row, error) {
	known, renew := v.recall(id)
	if known != nil && v.now().Before(known.expires) {
		if renew {
			_, _ = v.lookups.ask(id, true) // what was known is always let in
		}
		return known, nil
	}

	l, err := v.lookups.ask(id, known != nil)
	if err != nil {
		return nil, err
	}
	select {
	case <-l.done:
		return l.row, l.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// recall returns the latest row of id, which may have expired; renew: it is time to read it again.
func (v *Verifier) recall(id string) (r *row, renew bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r = v.rows[id]; r == nil {
		return nil, false
	}
	if now := v.now(); !now.Before(r.renew) {
		r.renew, renew = now.Add(renewEvery), true
	}
	return r, renew
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

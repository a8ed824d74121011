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

// ErrUnauthorized is returned for a token that is not valid: malformed, unknown, revoked or with a
// wrong secret, which the error does not tell apart.
var ErrUnauthorized = errors.New("unauthorized")

// ErrBusy is returned when too many unknown tokens wait for a look-up. Whether this one is valid is
// not known: try again.
var ErrBusy = errors.New("too many unknown credentials are being looked up")

// ErrMoved is returned for a valid token of a tenant that has moved to another cluster.
var ErrMoved = errors.New("the tenant has moved to another cluster")

// Identity is who calls, and what they may do.
type Identity struct {
	TenantID     uuid.UUID
	ClientID     uuid.UUID
	CredentialID string // for logs
	Scopes       []string
}

// Has reports whether the credential was granted scope.
func (i Identity) Has(scope string) bool { return slices.Contains(i.Scopes, scope) }

const (
	// How long a row is trusted, and so how long a revoked credential still works.
	trust = 30 * time.Second
	// After this time the next use reads the row again in the background. No request waits for it.
	renewAfter = 20 * time.Second
	// When a use asks again if no answer has come: the database may be away.
	renewEvery = 2 * time.Second
	// Only rows that exist in the database are cached, so guessing cannot fill it.
	cacheSize = 10_000
)

// Verifier turns tokens into identities. It caches the rows it reads for up to 30 seconds, so that
// a request costs no round trip of its own. Unknown tokens are looked up in batches: see lookups.
// It is safe for concurrent use.
type Verifier struct {
	now     func() time.Time
	lookups *lookups

	mu   sync.Mutex
	rows map[string]*row
}

// row is a credential that was valid when it was read.
type row struct {
	identity Identity
	hash     [sha256.Size]byte
	left     bool // its tenant has moved
	expires  time.Time
	renew    time.Time
}

// NewVerifier returns a Verifier that reads from db, as the role api_write. now is time.Now outside
// of tests.
func NewVerifier(db *pgxpool.Pool, now func() time.Time) *Verifier {
	v := &Verifier{now: now, rows: map[string]*row{}}
	v.lookups = &lookups{db: db, now: now, found: v.keep, waiting: map[string]*lookup{}}
	return v
}

// Verify returns the identity behind bearer (the Authorization header without "Bearer "), or
// ErrUnauthorized, or ErrMoved. Any other error means that the database could not be asked: answer 503.
func (v *Verifier) Verify(ctx context.Context, bearer string) (Identity, error) {
	token, ok := Parse(bearer)
	if !ok {
		return Identity{}, ErrUnauthorized
	}
	known, err := v.row(ctx, token.id)
	if err != nil {
		return Identity{}, err
	}

	// An unknown id is compared too, so that it takes as long.
	var want [sha256.Size]byte
	if known != nil {
		want = known.hash
	}
	got := token.hash()
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || known == nil {
		return Identity{}, ErrUnauthorized
	}
	if known.left {
		return Identity{}, ErrMoved
	}

	identity := known.identity
	identity.Scopes = slices.Clone(identity.Scopes) // the cached slice is shared
	return identity, nil
}

// row returns the cached row of id while it is trusted, and otherwise reads it.
func (v *Verifier) row(ctx context.Context, id string) (*row, error) {
	known, renew := v.recall(id)
	if known != nil && v.now().Before(known.expires) {
		if renew {
			_, _ = v.lookups.ask(id, true) // never ErrBusy for a known id
		}
		return known, nil
	}

	// Unknown, or not trusted any more: no one gets in before the database is asked.
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

// recall returns the cached row of id, which may have expired. renew means that it is time to read
// it again.
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

// keep caches what was read; nil: there is no such credential any more. read is when the query
// began, so that a revocation during the query is not ignored for longer than trust.
func (v *Verifier) keep(id string, r *row, read time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()

	if r == nil {
		delete(v.rows, id)
		return
	}

	if _, there := v.rows[id]; !there && len(v.rows) >= cacheSize {
		for other := range v.rows { // any of them: its client pays one look-up
			delete(v.rows, other)
			break
		}
	}

	r.expires, r.renew = read.Add(trust), read.Add(renewAfter)
	v.rows[id] = r
}

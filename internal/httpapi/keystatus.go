package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// keyStatus is the state of a key. Fields that are not known yet are null.
type keyStatus struct {
	Key            string     `json:"key"`
	Status         string     `json:"status"` // unknown, in_progress or completed
	ResponseStatus *int       `json:"response_status"`
	Resource       *string    `json:"resource"` // path of what was created
	FirstSeen      *time.Time `json:"first_seen"`
	Expires        *time.Time `json:"expires"`
}

// getKey returns the state of one of the client's own keys. It does not take the key's lock, so it
// disturbs no attempt.
func (s *server) getKey(c *call) (response, error) {
	key, err := pathKey(c.Request)
	if err != nil {
		return response{}, err
	}
	c.observe.Key = key

	if _, err := newQuery(c.Request); err != nil {
		return response{}, err
	}

	a, err := s.peek(c.Context(), idempotency.Request{
		TenantID: c.tenant(), ClientID: c.identity.ClientID, Key: key,
	})
	if err != nil {
		return response{}, err
	}

	// Only a finished key has an answer, and with it times and a resource.
	status := keyStatus{Key: key, Status: "unknown"}
	switch a.State {
	case idempotency.InProgress:
		status.Status = "in_progress"
	case idempotency.Replay:
		status.Status = "completed"
		status.ResponseStatus = &a.Response.Status
		if a.Response.Location != "" {
			status.Resource = &a.Response.Location
		}
		first, expires := a.Date.UTC(), a.Expires.UTC()
		status.FirstSeen, status.Expires = &first, &expires
	default: // New; the other states compare fingerprints, which a GET does not have
	}
	return ok(status), nil
}

// peek returns the state of a key without taking its lock.
func (s *server) peek(
	ctx context.Context, r idempotency.Request,
) (idempotency.Answer, error) {
	done, err := s.admission.read(ctx, r.TenantID)
	if err != nil {
		return idempotency.Answer{}, err
	}
	defer done()

	// Peek relies on READ COMMITTED.
	return asTenant(ctx, s.Read, pgx.ReadCommitted, r.TenantID, func(tx pgx.Tx) (idempotency.Answer, error) {
		return idempotency.Peek(ctx, tx, r, s.Retention)
	})
}

// pathKey reads {key}, the bare key percent-encoded. chi matches RawPath if there is one, and
// otherwise the decoded path.
func pathKey(r *http.Request) (string, error) {
	key := chi.URLParam(r, "key")
	if r.URL.RawPath != "" {
		key, _ = url.PathUnescape(key) // net/http has parsed the path, so it cannot fail
	}
	return key, idempotency.CheckKey(key)
}

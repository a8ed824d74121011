package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// keyStatus is what became of a key. What is not known yet is null.
type keyStatus struct {
	Key            string     `json:"key"`
	Status         string     `json:"status"` // unknown, in_progress or completed
	ResponseStatus *int       `json:"response_status"`
	Resource       *string    `json:"resource"` // where the thing that was made is
	FirstSeen      *time.Time `json:"first_seen"`
	Expires        *time.Time `json:"expires"`
}

// getKey tells what became of a key of the client that asks, without taking the key's lock: asking never disturbs.
func (s *server) getKey(_ http.Header, r *http.Request) (idempotency.Response, error) {
	key, err := pathKey(r)
	if err != nil {
		return idempotency.Response{}, err
	}
	exchangeOf(r).seen.Key = key
	if _, err := newQuery(r); err != nil {
		return idempotency.Response{}, err
	}
	who := exchangeOf(r).seen.Identity
	a, err := s.peek(r.Context(), idempotency.Request{TenantID: who.TenantID, ClientID: who.ClientID, Key: key})
	if err != nil {
		return idempotency.Response{}, err
	}
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
	case idempotency.New, idempotency.Mismatch, idempotency.UnknownFingerprintVersion: // the latter two compare fingerprints: not here
	}
	return ok(status), nil
}

// pathKey reads {key}, the bare key percent-encoded. chi matches the path as it was sent if it has escapes that Go would
// not write, and else decoded.
func pathKey(r *http.Request) (string, error) {
	key, err := chi.URLParam(r, "key"), error(nil)
	if r.URL.RawPath != "" {
		key, err = url.PathUnescape(key)
	}
	if err == nil && (key == "" || len(key) > idempotency.MaxKeyLength) {
		err = fmt.Errorf("%w: 1 to %d characters are allowed", idempotency.ErrKeyInvalid, idempotency.MaxKeyLength)
	}
	for i := 0; err == nil && i < len(key); i++ {
		if key[i] <= ' ' || key[i] > '~' {
			err = fmt.Errorf("%w: only visible ASCII characters are allowed, no spaces", idempotency.ErrKeyInvalid)
		}
	}
	return key, err
}

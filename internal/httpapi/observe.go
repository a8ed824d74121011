package httpapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
)

// Observation is what is known of a request when it has been answered. Metrics, spans and the access log are made of it.
type Observation struct {
	Route     string // pattern; empty: no route matched
	Method    string
	Status    int // 0: the connection was cut by a panic while the answer was written
	Duration  time.Duration
	RequestID string

	Identity credentials.Identity // zero: not authenticated

	// Outcome is what became of the key: new, replay, mismatch, in_progress, unreadable, or invalid when it is missing or
	// malformed. Empty: the request has no use for a key, or was refused or failed before the key was looked at.
	Outcome string
	Key     string // empty: none, or not well-formed
	Err     error  // what was hidden behind a 5xx; logged already
}

// exchange is the request in hand, in its context: what is to be observed, gathered on the way.
type exchange struct {
	seen   Observation
	keyErr error // what is wrong with the Idempotency-Key of a POST
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// observe gives the request its id and the headers that every answer has, and reports it when it is over.
func (s *server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		x := &exchange{seen: Observation{Method: r.Method, RequestID: requestID(r.Header)}}
		h := w.Header()
		if r.Method == http.MethodPost { // elsewhere the header is ignored
			if x.seen.Key, x.keyErr = idempotency.ParseKey(r.Header); x.keyErr == nil {
				h.Set(idempotency.Header, x.seen.Key)
			}
		}
		h.Set("X-Request-Id", x.seen.RequestID)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
		defer func() {
			x.seen.Duration = time.Since(start)
			x.seen.Route = chi.RouteContext(r.Context()).RoutePattern()
			if s.Observe != nil {
				s.Observe(r.Context(), x.seen)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// requestID is the client's own when it is well-formed: it ends up in logs and in the database.
func requestID(h http.Header) string {
	ids := h.Values("X-Request-Id")
	// A credential that was put into the wrong header is not to be seen in logs.
	if len(ids) != 1 || len(ids[0]) < 1 || len(ids[0]) > 128 || strings.HasPrefix(ids[0], "oncepay_") {
		return newID()
	}
	for i := range len(ids[0]) {
		switch c := ids[0][i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return newID()
		}
	}
	return ids[0]
}

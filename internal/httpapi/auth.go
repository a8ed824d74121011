package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
)

// authenticate lets a request through that has exactly one Authorization header with a valid bearer credential. Every
// other one gets the same 401, whatever the cause, and a 503 when the database cannot be asked. The handler's time begins
// here, with the first thing that may wait.
func (s *server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Not the request's own end: net/http takes a client that has only closed its sending half for one that is gone. Whoever
		// has sent a whole request gets it done, and finds the answer under its key when it could not wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), handlerTimeout)
		defer cancel()
		r = r.WithContext(ctx)
		identity, err := s.identify(r)
		if err != nil {
			s.serve(func(http.Header, *http.Request) (idempotency.Response, error) {
				return idempotency.Response{}, err
			})(w, r)
			return
		}
		exchangeOf(r).seen.Identity = identity
		next.ServeHTTP(w, r)
	})
}

func (s *server) identify(r *http.Request) (credentials.Identity, error) {
	lines := r.Header.Values("Authorization")
	if len(lines) != 1 {
		return credentials.Identity{}, credentials.ErrUnauthorized
	}
	scheme, token, _ := strings.Cut(lines[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return credentials.Identity{}, credentials.ErrUnauthorized
	}
	return s.Credentials.Verify(r.Context(), strings.TrimLeft(token, " "))
}

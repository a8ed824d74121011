package httpapi

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/idempotency"
)

// problemFor is the one place where errors become problems. What it does not know says nothing about itself.
func problemFor(err error) *problem {
	var p *problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, idempotency.ErrKeyMissing):
		return refuse("idempotency-key-missing", `Send an Idempotency-Key header, such as a UUID, new for every payment and the same for every repeat of it.`)
	case errors.Is(err, idempotency.ErrKeyInvalid):
		return refuse("idempotency-key-invalid", "%s.", sentence(err))
	case errors.Is(err, credentials.ErrUnauthorized):
		return refuse("unauthorized", "Send one Authorization header: Bearer and a valid credential.").with("WWW-Authenticate", "Bearer")
	case errors.Is(err, idempotency.ErrOutcomeUnknown), errors.Is(err, groupcommit.ErrUnfinished):
		return refuse("outcome-unknown", "It may have taken effect or not. Repeat the identical request with the same key to find out; it will not take effect twice.").
			with("Retry-After", soon())
	case errors.Is(err, groupcommit.ErrOverloaded), errors.Is(err, groupcommit.ErrStopped), errors.Is(err, groupcommit.ErrNotBegun),
		errors.Is(err, credentials.ErrBusy), unavailable(err):
		return refuse("unavailable", "Nothing was done. Repeat the identical request later; under the same key it will not take effect twice.").
			with("Retry-After", soon())
	}
	return refuse("internal", "Nothing was done, as far as is known. Tell the operator the request id.")
}

// unavailable says whether err is the database's absence or overload, so that a repeat may well succeed.
func unavailable(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "25006", // read-only: the pool still talks to a former primary
			"40001", "40P01", "55P03", // lost a race more often than is usual
			"57014": // statement_timeout
			return true
		}
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "57P0")
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// soon is a Retry-After with jitter: clients that failed together should not come back together.
func soon() string { return strconv.Itoa(1 + rand.IntN(3)) }

func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

func notFound(http.Header, *http.Request) (idempotency.Response, error) {
	return idempotency.Response{}, errNotFound
}

// errNotFound is one for all: what is not there, what is another tenant's, an id that is none, a path without a route.
var errNotFound = refuse("not-found", "There is nothing here, or nothing that your credential may see.")

// methodNotAllowed is what chi calls for a path with other methods, and for methods unknown to it on any path.
func methodNotAllowed(h http.Header, r *http.Request) (idempotency.Response, error) {
	routes, path := chi.RouteContext(r.Context()).Routes, r.URL.Path
	if r.URL.RawPath != "" {
		path = r.URL.RawPath
	}
	var allowed []string
	if routes.Match(chi.NewRouteContext(), http.MethodGet, path) {
		allowed = append(allowed, http.MethodGet, http.MethodHead)
	}
	if routes.Match(chi.NewRouteContext(), http.MethodPost, path) {
		allowed = append(allowed, http.MethodPost)
	}
	if len(allowed) == 0 {
		return notFound(h, r)
	}
	methods := strings.Join(allowed, ", ")
	return idempotency.Response{}, refuse("method-not-allowed", "Use %s.", methods).with("Allow", methods)
}

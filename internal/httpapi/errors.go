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
	"github.com/oncepay/oncepay/internal/payments"
)

// problemFor is the only place where errors become problems. An error it does not know reveals
// nothing about itself.
func problemFor(err error) *problem {
	var p *problem

	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, payments.ErrNotFound):
		return errNotFound
	case errors.Is(err, idempotency.ErrKeyMissing):
		return refuse("idempotency-key-missing",
			"Send an Idempotency-Key header, such as a UUID: "+
				"new for every payment, the same for every repeat of it.")
	case errors.Is(err, idempotency.ErrKeyInvalid):
		return refuse("idempotency-key-invalid", "%s.", sentence(err))
	case errors.Is(err, credentials.ErrUnauthorized):
		return refuse("unauthorized",
			"Send one Authorization header: Bearer and a valid credential.").with("WWW-Authenticate", "Bearer")
	case errors.Is(err, idempotency.ErrOutcomeUnknown), errors.Is(err, groupcommit.ErrUnfinished):
		return refuse("outcome-unknown",
			"The request may or may not have taken effect. Repeat the identical request "+
				"with the same key to find out; it will not take effect twice.").later()
	case errors.Is(err, credentials.ErrMoved), errors.Is(err, payments.ErrMoving):
		return refuse("unavailable",
			"Nothing was done: your data is moving to another cluster. "+
				"Repeat the identical request later with the same key.").later()
	case notBegun(err), unavailable(err):
		return refuse("unavailable",
			"Nothing was done. Repeat the identical request later; "+
				"under the same key it will not take effect twice.").later()
	}
	return refuse("internal",
		"As far as we know, nothing was done. Report the request_id to the operator.")
}

// notBegun reports whether err means that work on the request never started.
func notBegun(err error) bool {
	return errors.Is(err, groupcommit.ErrOverloaded) || errors.Is(err, groupcommit.ErrStopped) ||
		errors.Is(err, groupcommit.ErrNotBegun) || errors.Is(err, credentials.ErrBusy)
}

// unavailable reports whether err means that the database is away or overloaded, so that a repeat
// may succeed.
func unavailable(err error) bool {
	// The server answered: its SQLSTATE decides.
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "25006", // read-only: the pool is still connected to a former primary
			"25P03", "25P04", // idle within a transaction, or in one, for too long
			"40001", "40P01", "55P03", // lost a race more often than usual
			"57014": // statement_timeout
			return true
		}
		class := pg.Code[:min(2, len(pg.Code))]
		return class == "08" || class == "53" || strings.HasPrefix(pg.Code, "57P0")
	}

	// It did not answer, or not in time.
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) ||
		pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// soon is a Retry-After with jitter: clients that failed together should not retry together.
func soon() string { return strconv.Itoa(1 + rand.IntN(3)) }

func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

// errNotFound covers everything: what does not exist, what is another tenant's, malformed ids and
// unknown paths.
var errNotFound = refuse("not-found",
	"There is nothing here, or nothing that your credential may see.")

func notFound(*call) (response, error) { return response{}, errNotFound }

// methodNotAllowed is called by chi for a path with other methods, and for unknown methods on any
// path.
func methodNotAllowed(c *call) (response, error) {
	routes, path := chi.RouteContext(c.Context()).Routes, c.URL.Path
	if c.URL.RawPath != "" {
		path = c.URL.RawPath
	}

	// GET also answers HEAD, which has no routes of its own.
	var allowed []string
	if routes.Match(chi.NewRouteContext(), http.MethodGet, path) {
		allowed = append(allowed, http.MethodGet, http.MethodHead)
	}
	if routes.Match(chi.NewRouteContext(), http.MethodPost, path) {
		allowed = append(allowed, http.MethodPost)
	}
	if routes.Match(chi.NewRouteContext(), http.MethodDelete, path) {
		allowed = append(allowed, http.MethodDelete)
	}
	if len(allowed) == 0 { // an unknown method on an unknown path
		return notFound(c)
	}

	methods := strings.Join(allowed, ", ")
	return response{}, refuse("method-not-allowed", "Use %s.", methods).with("Allow", methods)
}

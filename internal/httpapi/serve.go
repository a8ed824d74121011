package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
)

// handler answers a request: it returns what is to be sent, or an error that becomes a problem. Headers beyond those of
// the response go into header.
type handler func(header http.Header, r *http.Request) (idempotency.Response, error)

// serve runs h and writes what it returns.
func (s *server) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		response, err := h(w.Header(), r)
		if err != nil {
			response = s.fail(w.Header(), r, err)
		}
		write(w, r, response)
	}
}

// fail turns an error into its problem and makes the one log line of what the client is not told.
func (s *server) fail(header http.Header, r *http.Request, err error) idempotency.Response {
	x := exchangeOf(r)
	p := *problemFor(err)
	p.Instance, p.RequestID = r.URL.EscapedPath(), x.seen.RequestID
	for name, value := range p.header {
		header.Set(name, value)
	}
	if p.Status >= http.StatusInternalServerError {
		x.seen.Err = err
		level := slog.LevelError
		if p.Status == http.StatusServiceUnavailable {
			level = slog.LevelWarn // somebody else's outage, and as many lines as it has victims
		}
		// A client that left took its request with it: nobody waits for the answer and nothing is broken. And strangers, who
		// can be as many as they like, do not write the log.
		if !errors.Is(r.Context().Err(), context.Canceled) && !errors.Is(err, credentials.ErrBusy) {
			s.Log.Log(r.Context(), level, "request failed", "request_id", x.seen.RequestID, "code", p.Code, "error", err)
		}
	}
	return p.response()
}

// write is the only place that writes to a client.
func write(w http.ResponseWriter, r *http.Request, response idempotency.Response) {
	h := w.Header()
	h.Set("Content-Type", response.ContentType)
	if response.Location != "" {
		h.Set("Location", response.Location)
	}
	h.Set("Content-Length", strconv.Itoa(len(response.Body))) // a cut answer must not look whole
	exchangeOf(r).seen.Status = response.Status
	w.WriteHeader(response.Status)
	_, _ = w.Write(response.Body) // a client that is gone comes back with the same key
}

// recover answers a panic with a 500 that says nothing. Whatever transaction was open has been rolled back by its owner.
func (s *server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			x := exchangeOf(r)
			if x.seen.Status != 0 {
				panic(cause) // nothing sensible can follow what was written already: net/http cuts the connection
			}
			err := fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
			write(w, r, s.fail(w.Header(), r, err))
		}()
		next.ServeHTTP(w, r)
	})
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/oncepay/oncepay/internal/credentials"
)

// handlerTimeout bounds the work for one request. It is longer than the database's own limits and
// shorter than the server's WriteTimeout.
const handlerTimeout = 8 * time.Second

// handler answers a call. An error becomes a problem document.
type handler func(*call) (response, error)

// response is what is written to the client. Headers of single answers go into call.header.
type response struct {
	status      int
	contentType string
	location    string // empty: no Location header
	body        []byte
}

// serve runs h, writes its answer and reports the request to Options.Observe.
func (s *server) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()

		// A fully received request runs even if the client disconnects, because net/http cannot
		// tell a disconnect from a client that has only closed its sending half. The answer can be
		// fetched under the key.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), handlerTimeout)
		defer cancel()
		c := newCall(w.Header(), r.WithContext(ctx))
		defer func() { c.done() }()

		if s.Observe != nil {
			defer func() {
				c.observe.Duration = time.Since(start)
				c.observe.Route = chi.RouteContext(ctx).RoutePattern()
				s.Observe(r.Context(), *c.observe)
			}()
		}

		defer s.recover(w, c)
		answer, err := h(c)
		if err != nil {
			answer = s.fail(c, err)
		}
		write(w, c, answer)
	}
}

// fail turns an error into its problem, and logs the cause that the client is not told.
func (s *server) fail(c *call, err error) response {
	p := *problemFor(err)
	p.Instance, p.RequestID = c.instance(), c.id
	for name, value := range p.header {
		c.header.Set(name, value)
	}

	if p.Status >= http.StatusInternalServerError {
		c.observe.Err = err
		// The cause goes to the log and to Observe only.
		level := slog.LevelError
		if p.Status == http.StatusServiceUnavailable {
			level = slog.LevelWarn // an outage elsewhere, which logs a line per affected request
		}
		if !errors.Is(err, credentials.ErrBusy) { // strangers, as many as they like, do not write the log
			s.Log.Log(c.Context(), level, "request failed",
				"request_id", c.id, "code", p.Code, "error", err)
		}
	}

	return p.response()
}

// write is the only function that writes to a client.
func write(w http.ResponseWriter, c *call, answer response) {
	if answer.body != nil { // a 204 or 304 has none
		c.header.Set("Content-Type", answer.contentType)
		c.header.Set("Content-Length", strconv.Itoa(len(answer.body))) // makes a truncated answer detectable
	}
	if answer.location != "" {
		c.header.Set("Location", answer.location)
	}
	c.observe.Status = answer.status

	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body) // a client that is gone retries with the same key
}

// recover answers a panic with a 500. Any open transaction has been rolled back by its owner.
func (s *server) recover(w http.ResponseWriter, c *call) {
	cause := recover()
	if cause == nil {
		return
	}
	if c.observe.Status != 0 {
		panic(cause) // part of the answer is on its way: let net/http cut the connection
	}
	write(w, c, s.fail(c, fmt.Errorf("panic: %v\n%s", cause, debug.Stack())))
}

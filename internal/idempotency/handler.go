package idempotency

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Handler makes do idempotent: a net/http handler that works in a transaction. It reads the body,
// claims the key, calls do with the transaction and a ResponseWriter that only collects, stores
// what do wrote, commits, and only then writes to the client. A repeat gets the same bytes.
//
// It is the pattern in its smallest form, a start for a service of one's own: every request is a
// transaction, problems are one line of text, the fingerprint covers path, query and body as they
// were sent, white space included, and of the headers only Content-Type and Location are kept. A
// status of 500 or more, and a panic, roll back and store nothing.
type Handler struct {
	DB        Beginner
	Retention time.Duration // zero: DefaultRetention

	// Scope names the tenant and client of an authenticated request; false: 401.
	Scope func(*http.Request) (tenant, client uuid.UUID, ok bool)
	// Do does the work. It may be called more than once for a request, each time in a new
	// transaction.
	Do  func(w http.ResponseWriter, r *http.Request, tx pgx.Tx)
	Log *slog.Logger // nil: slog.Default()
}

const maxBody = 64 << 10

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tenant, client, ok := h.Scope(r)
	if !ok {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
	key, err := ParseKey(r.Header)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The whole body before the transaction: a slow client must not hold a claim.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "the body cannot be read or is too large", http.StatusRequestEntityTooLarge)
		return
	}
	request := Request{
		TenantID: tenant, ClientID: client, Key: key, RequestID: uuid.NewString(),
		Fingerprint: NewFingerprint(tenant, r.Method, r.URL.RequestURI(), nil, body), // with the query: it asks for something, too
	}
	answer, err := Run(r.Context(), h.DB, request, h.Retention, func(ctx context.Context, tx pgx.Tx) (Response, error) {
		again := r.Clone(ctx)
		again.Body = io.NopCloser(bytes.NewReader(body))
		c := collector{header: http.Header{}, status: http.StatusOK}
		h.Do(&c, again, tx)
		if c.status > 499 {
			return Response{}, errServer
		}
		return Response{
			Status: c.status, ContentType: c.header.Get("Content-Type"), Location: c.header.Get("Location"), Body: c.body.Bytes(),
		}, nil
	})
	if err != nil {
		log := h.Log
		if log == nil {
			log = slog.Default()
		}
		log.ErrorContext(r.Context(), "request rolled back", "request_id", request.RequestID, "error", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "nothing is known to have happened; repeat with the same key", http.StatusServiceUnavailable)
		return
	}
	write(w, key, answer)
}

var errServer = errors.New("the handler answered with a server error")

func write(w http.ResponseWriter, key string, a Answer) {
	w.Header().Set(Header, key)
	if !a.Expires.IsZero() {
		w.Header().Set("Idempotency-Key-Expires", a.Expires.UTC().Format(http.TimeFormat))
	}
	switch a.State {
	case InProgress:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "a request with this key is being worked on", http.StatusConflict)
		return
	case Mismatch:
		http.Error(w, "this key was used for another request", http.StatusUnprocessableEntity)
		return
	case UnknownFingerprintVersion:
		w.Header().Set("Retry-After", "60")
		http.Error(w, "this key was stored by a newer version of this service", http.StatusServiceUnavailable)
		return
	case New, Replay:
	}
	w.Header().Set("Idempotent-Replayed", strconv.FormatBool(a.State == Replay))
	if a.State == Replay {
		w.Header().Set("Original-Request-Id", a.RequestID)
		w.Header().Set("Original-Date", a.Date.UTC().Format(http.TimeFormat))
	}
	if a.Response.ContentType != "" {
		w.Header().Set("Content-Type", a.Response.ContentType)
	}
	if a.Response.Location != "" {
		w.Header().Set("Location", a.Response.Location)
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(a.Response.Body)))
	w.WriteHeader(a.Response.Status)
	_, _ = w.Write(a.Response.Body) // a client that is gone comes back with the same key
}

// collector is a ResponseWriter that keeps everything until the transaction is committed.
type collector struct {
	header http.Header
	status int
	wrote  bool
	body   bytes.Buffer
}

func (c *collector) Header() http.Header { return c.header }

func (c *collector) WriteHeader(status int) {
	if !c.wrote {
		c.status, c.wrote = status, true
	}
}

func (c *collector) Write(b []byte) (int, error) {
	c.wrote = true
	return c.body.Write(b)
}

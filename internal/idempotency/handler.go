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

// Handler makes a net/http handler that works in a transaction idempotent. It reads the body,
// claims the key, calls Do with the transaction and a ResponseWriter that only collects, stores
// what Do wrote, commits, and only then writes to the client. A repeat gets the same bytes.
//
// It is the pattern in its smallest form, a start for a service of your own: each request is a
// transaction, problems are one line of text, the fingerprint covers path, query and body exactly
// as sent, and of the headers only Content-Type and Location are kept.
type Handler struct {
	DB        Beginner
	Retention time.Duration // zero: DefaultRetention

	// Scope returns the tenant and client of an authenticated request; if not ok, the answer is
	// 401.
	Scope func(*http.Request) (tenant, client uuid.UUID, ok bool)

	// Validate, if set, checks a request before its key is claimed. To refuse it, write the answer
	// and return false: nothing is stored, so the client may correct the request and send it under
	// the same key. What Do writes is stored, a 400 too.
	Validate func(w http.ResponseWriter, r *http.Request) bool

	// Do does the work. If it returns an error or a status of 500 or more, or panics, the
	// transaction is rolled back, nothing is stored and the answer is 503. Return the database's
	// errors as they are: after a lost race (see CommitOnce) Do is called again, in a new
	// transaction.
	Do func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error

	Log *slog.Logger // nil: slog.Default()
}

const maxBody = 64 << 10

var errServer = errors.New("the handler answered with a server error")

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

	// Read the whole body before the transaction: a slow client must not hold a claim.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "cannot read the body, or it is too large", http.StatusRequestEntityTooLarge)
		return
	}

	// Whatever is refused here leaves no trace: the key stays free.
	if h.Validate != nil && !h.Validate(w, withBody(r.Context(), r, body)) {
		return
	}

	// The query is part of the fingerprint: it asks for something, too.
	request := Request{
		TenantID: tenant, ClientID: client, Key: key, RequestID: uuid.NewString(),
		Fingerprint: NewFingerprint(tenant, r.Method, r.URL.RequestURI(), nil, body),
	}
	do := func(ctx context.Context, tx pgx.Tx) (Response, error) {
		return h.collect(withBody(ctx, r, body), tx)
	}

	// Claim, Do, Store, COMMIT. Only then is anything sent.
	answer, err := Run(r.Context(), h.DB, request, h.Retention, do)
	if err != nil {
		h.log().ErrorContext(r.Context(), "request failed",
			"request_id", request.RequestID, "error", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "unavailable; repeat with the same key", http.StatusServiceUnavailable)
		return
	}
	write(w, key, answer)
}

// withBody returns a copy of r with a body that can be read once more.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.Clone(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return r
}

// collect calls Do and returns what it wrote.
func (h *Handler) collect(r *http.Request, tx pgx.Tx) (Response, error) {
	c := collector{header: http.Header{}, status: http.StatusOK}
	if err := h.Do(&c, r, tx); err != nil {
		return Response{}, err
	}

	if c.status > 499 {
		return Response{}, errServer
	}

	return Response{
		Status:      c.status,
		ContentType: c.header.Get("Content-Type"),
		Location:    c.header.Get("Location"),
		Body:        c.body.Bytes(),
	}, nil
}

func (h *Handler) log() *slog.Logger {
	if h.Log == nil {
		return slog.Default()
	}
	return h.Log
}

func write(w http.ResponseWriter, key string, a Answer) {
	w.Header().Set(Header, key)
	if !a.Expires.IsZero() {
		w.Header().Set("Idempotency-Key-Expires", a.Expires.UTC().Format(http.TimeFormat))
	}

	switch a.State {
	case InProgress:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "a request with this key is in progress", http.StatusConflict)
		return
	case Mismatch:
		http.Error(w, "this key was used for another request", http.StatusUnprocessableEntity)
		return
	case UnknownFingerprintVersion:
		w.Header().Set("Retry-After", "60")
		http.Error(w, "a newer version of the service stored this key", http.StatusServiceUnavailable)
		return
	case New, Replay:
	}

	// The stored answer. Headers alone tell a first answer from a replay.
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
	_, _ = w.Write(a.Response.Body) // a client that is gone may repeat
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

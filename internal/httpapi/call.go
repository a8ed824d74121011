package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
)

// call is a request together with what was found out about it before its handler runs.
type call struct {
	*http.Request

	id       string // the attempt's X-Request-Id
	key      string // of a POST; empty if keyErr is set
	keyErr   error
	identity credentials.Identity // zero on routes without authentication

	header  http.Header  // of the answer
	done    func()       // called when the answer is written
	observe *Observation // filled in on the way, for Options.Observe
}

// newCall gives the request its id and the answer the headers that every answer has.
func newCall(header http.Header, r *http.Request) *call {
	c := &call{Request: r, id: requestID(r.Header), header: header, done: func() {}}
	c.observe = &Observation{Method: short(r.Method), RequestID: c.id}

	// Here and not in post, so that every answer echoes the key, a 401 or 404 too.
	if r.Method == http.MethodPost { // other methods ignore the header
		if c.key, c.keyErr = idempotency.ParseKey(r.Header); c.keyErr == nil {
			header.Set(idempotency.Header, c.key)
		}
		c.observe.Key = c.key
	}

	// A chunked body may have come with a Content-Length too, which net/http drops without a word.
	// RFC 9112 section 6.1 then demands to close the connection: a proxy that went by the length
	// takes the next answer for another client's.
	if len(r.TransferEncoding) > 0 {
		header.Set("Connection", "close")
	}

	header.Set("X-Request-Id", c.id)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	return c
}

// instance is the path as a problem shows it. A path longer than any of ours is not repeated: in
// JSON it may take six times as many bytes.
func (c *call) instance() string {
	path := c.URL.EscapedPath()
	if path == "" || len(path) > maxPath {
		return "/"
	}
	return path
}

// tenant is the tenant whose rows the call may see.
func (c *call) tenant() uuid.UUID { return c.identity.TenantID }

// pathID reads {id}. An id that is malformed does not exist.
func (c *call) pathID() (uuid.UUID, error) { return c.pathUUID("id") }

func (c *call) pathUUID(name string) (uuid.UUID, error) {
	id, ok := canonicalID(chi.URLParam(c.Request, name))
	if !ok {
		return id, errNotFound
	}
	return id, nil
}

// Observation describes a request that has been answered. Metrics, spans and the access log are
// made from it.
type Observation struct {
	Route     string // pattern; empty: no route matched
	Method    string
	Status    int // as sent, even if a panic then cut the connection
	Duration  time.Duration
	RequestID string

	Identity credentials.Identity // zero: not authenticated

	// Outcome is the state of the key: new, replay, mismatch, in_progress, unreadable, busy, or
	// invalid when the key is missing or malformed. It is empty if the route uses no key, or if the
	// request failed before the key was looked up.
	Outcome string
	Key     string // empty: none, or malformed
	Webhook string // what became of the PSP's webhook, see PSPWebhooks; empty: it was none
	Err     error  // the cause of a 5xx, already logged
}

// requestID returns the client's own id if it is well-formed, since it ends up in logs and in the
// database.
func requestID(h http.Header) string {
	ids := h.Values("X-Request-Id")
	if len(ids) != 1 || len(ids[0]) < 1 || len(ids[0]) > 128 {
		return newID()
	}
	// A credential sent in the wrong header must not reach the log.
	if strings.HasPrefix(ids[0], "oncepay_") {
		return newID()
	}

	for i := range len(ids[0]) {
		switch c := ids[0][i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == '-':
		default:
			return newID()
		}
	}
	return ids[0]
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

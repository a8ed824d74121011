package httpapi

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// Options is what the API needs.
type Options struct {
	// Submit claims the key, executes, stores and commits. What it returned without an error may be sent.
	Submit func(context.Context, payments.Request) (idempotency.Answer, error)
	// Await waits until a request that was Busy may be submitted again, and reports whether it may; nil: never.
	Await func(context.Context, payments.Request) bool
	// Write finds the replays of requests beyond rate or share, on the primary. Submit is not asked for them.
	Write idempotency.Beginner
	// Read is for GET and for looking at keys, with the role api_read: row-level security stands behind every WHERE. A
	// tenant has half of its connections at most.
	Read        *pgxpool.Pool
	Credentials *credentials.Verifier
	Retention   time.Duration // how long answers are kept; zero: idempotency.DefaultRetention
	RateLimit   float64       // executed requests per second and client; 0: no limit
	TenantMax   int           // requests of a tenant that are worked on at a time; 0: no limit
	// CursorKey signs the cursors of lists. All instances need the same, or a list begun at one cannot go on at another.
	// Empty: a random one, good for a single instance until it restarts.
	CursorKey []byte
	Ready     func(context.Context) error             // whether to send requests here; nil: always
	Headers   func(context.Context) map[string]string // go with events: trace context; may be nil
	Observe   func(context.Context, Observation)      // called after every request; may be nil
	Log       *slog.Logger                            // causes of 5xx and panics; nil: discarded
}

// Paths of the collections. They stand in Location headers and in fingerprints, and so in the database: do not change them.
const (
	accountsPath = "/api/v1/accounts"
	paymentsPath = "/api/v1/payments"
	keysPath     = "/api/v1/idempotency-keys"
)

// handlerTimeout bounds what is done for one request: above the database's own limits, below the server's WriteTimeout.
const handlerTimeout = 8 * time.Second

type server struct {
	Options
	limits *limits
	shares *shares
	looks  *turns
	reads  *turns
}

// New returns the API.
func New(o Options) http.Handler {
	if o.Retention == 0 {
		o.Retention = idempotency.DefaultRetention
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if len(o.CursorKey) == 0 {
		o.CursorKey = make([]byte, 32)
		_, _ = rand.Read(o.CursorKey) // never fails: the program would have crashed
	}
	connections := 0
	if o.Read != nil { // nil: for the routes alone
		connections = int(o.Read.Config().MaxConns)
	}
	s := &server{
		Options: o,
		limits:  newLimits(o.RateLimit, time.Now),
		shares:  newShares(o.TenantMax, time.Now),
		looks:   newLooks(),
		reads:   newReads(connections),
	}

	r := chi.NewRouter()
	r.Use(s.observe, s.recover, middleware.GetHead)
	r.NotFound(s.serve(notFound))
	r.MethodNotAllowed(s.serve(methodNotAllowed))

	r.Get("/livez", s.serve(s.live))
	r.Get("/readyz", s.serve(s.ready))

	r.Group(func(r chi.Router) {
		r.Use(s.authenticate)
		r.Post(accountsPath, s.post(accountsPath, decodeAccount))
		r.Get(accountsPath+"/{id}", s.serve(s.getAccount))
		r.Get(accountsPath+"/{id}/entries", s.serve(s.listEntries))
		r.Post(paymentsPath, s.post(paymentsPath, decodePayment))
		r.Get(paymentsPath, s.serve(s.listPayments))
		r.Get(paymentsPath+"/{id}", s.serve(s.getPayment))
		r.Get(keysPath+"/{key}", s.serve(s.getKey))
	})
	return r
}

// Server returns a server with limits for clients that are slow, by accident or on purpose. Each limit is larger than
// what it has to wait for: a statement 3 s, a handler 8 s, then COMMIT and finding out what became of it 9 s; the answer is
// written within 20 s, a program drains within 25 s, a client should be patient for 30 s.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  10 * time.Second,
		WriteTimeout:                 20 * time.Second,
		IdleTimeout:                  time.Minute,
		MaxHeaderBytes:               16 << 10,
		DisableGeneralOptionsHandler: true, // OPTIONS * is a 404 like any other unknown path
	}
}

package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// Options configures the API.
type Options struct {
	// Submit claims the key, executes, stores and commits. An answer without an error may be sent.
	Submit func(context.Context, payments.Request) (idempotency.Answer, error)
	// Await waits until a request that was Busy may be submitted again, and reports whether it may.
	Await func(context.Context, payments.Request) bool
	// Write finds, on the primary, the replays of requests beyond their rate or share. Those are
	// not submitted.
	Write idempotency.Beginner
	// Read serves GET and the status of keys, as the role api_read: row-level security backs up
	// every WHERE. A tenant has at most as many reads at a time as half of its connections, until
	// their answers are written.
	Read        *pgxpool.Pool
	Credentials *credentials.Verifier

	Retention time.Duration // how long answers are kept; zero: idempotency.DefaultRetention
	RateLimit float64       // executed requests per second and client; 0: no limit
	TenantMax int           // requests of one tenant in progress at a time; 0: no limit

	// AuthorizationMin is the shortest authorization that a payment may ask for; zero:
	// payments.MinAuthorization.
	AuthorizationMin time.Duration

	PSP *PSPWebhooks // nil: there is no such route
	// WebhooksAllow are addresses that webhook endpoints may have although they are not public.
	WebhooksAllow []netip.Prefix

	Ready   func(context.Context) error             // an error: send requests elsewhere
	Headers func(context.Context) map[string]string // sent with events: trace context; may be nil
	Observe func(context.Context, Observation)      // called after every request; may be nil
	Log     *slog.Logger                            // causes of 5xx and panics; nil: discarded
}

// Paths of the collections, and of what is done to a payment. They are part of Location headers and
// fingerprints, hence stored: do not change them.
const (
	accountsPath = "/api/v1/accounts"
	paymentsPath = "/api/v1/payments"
	refundsPath  = "/api/v1/refunds"
	keysPath     = "/api/v1/idempotency-keys"
	pspPath      = "/webhooks/psp"

	capturePath        = paymentsPath + "/{id}/capture"
	cancelPath         = paymentsPath + "/{id}/cancel"
	paymentRefundsPath = paymentsPath + "/{id}/refunds"
)

type server struct {
	Options
	admission   *admission
	settlements settlements
}

// New returns the API.
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.AuthorizationMin == 0 {
		o.AuthorizationMin = payments.MinAuthorization
	}

	connections := 0
	if o.Read != nil { // nil: for the routes alone
		connections = int(o.Read.Config().MaxConns)
	}
	s := &server{Options: o, admission: newAdmission(o.RateLimit, o.TenantMax, connections)}
	s.settlements = settlements{look: s.settled, of: map[uuid.UUID]*waiters{}}

	// What no route matches is a problem document as well, and observed like every request.
	r := chi.NewRouter()
	r.Use(middleware.GetHead)
	r.NotFound(s.serve(notFound))
	r.MethodNotAllowed(s.serve(methodNotAllowed))

	r.Get("/livez", s.serve(live))
	r.Get("/readyz", s.serve(s.ready))

	// The PSP signs what it sends.
	if o.PSP != nil {
		r.Post(pspPath, s.serve(newPSP(*o.PSP, o.Log).receive))
	}

	// Everything else needs a credential.
	r.Post(accountsPath, s.private(s.post(accountsPath, decodeAccount)))
	r.Get(accountsPath+"/{id}", s.private(s.getAccount))
	r.Get(accountsPath+"/{id}/entries", s.private(s.listEntries))
	r.Post(paymentsPath, s.private(s.post(paymentsPath, paymentDecoder(o.AuthorizationMin))))
	r.Get(paymentsPath, s.private(s.listPayments))
	r.Get(paymentsPath+"/{id}", s.private(s.getPayment))
	r.Post(capturePath, s.private(s.post(capturePath, decodeCapture)))
	r.Post(cancelPath, s.private(s.post(cancelPath, decodeCancel)))
	r.Post(paymentRefundsPath, s.private(s.post(paymentRefundsPath, decodeRefund)))
	r.Get(paymentRefundsPath, s.private(s.listRefunds))
	r.Get(refundsPath+"/{id}", s.private(s.getRefund))
	r.Get(keysPath+"/{key}", s.private(s.getKey))
	s.routeWebhooks(r)
	return r
}

// Server returns a server with limits for clients that are slow, by accident or on purpose. Each
// limit is longer than what it includes: a statement takes up to 3 s, a handler 8 s, COMMIT and
// finding out its outcome 9 s more. The answer is written within 20 s, a program drains within 25
// s, and clients should wait for 30 s.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  10 * time.Second,
		WriteTimeout:                 20 * time.Second,
		IdleTimeout:                  time.Minute,
		MaxHeaderBytes:               16 << 10,
		DisableGeneralOptionsHandler: true, // OPTIONS * gets a 404 like any other unknown path
	}
}

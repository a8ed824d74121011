// Command api answers HTTP: it takes payments, captures, cancels and refunds them, and shows them
// and the accounts.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/telemetry"
)

func main() {
	os.Exit(program.Main(api, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

var api = program.Program{
	Name: "api",
	About: "api takes payments over HTTP. One transaction claims the idempotency key, " +
		"writes the payment and its event, and stores the answer.",
	Usage: config.Usage("api"),
	Example: "  DATABASE_URL=postgres://api_write:secret@localhost:5432/oncepay " +
		"DATABASE_READ_URL=postgres://api_read:secret@localhost:5432/oncepay api",
	Run: run,
	Probe: func(getenv func(string) string) (string, error) {
		cfg, err := config.LoadAPI(getenv)
		return cfg.HTTPAddr, err
	},
}

// gcPercent makes the collector run a third as often as Go's default. What outlives a request is
// some 10 MiB, so this saves some 15 % of the processor time and costs 25 MiB. GOGC and GOMEMLIMIT
// work as usual.
const gcPercent = 300

func run(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	cfg, err := config.LoadAPI(getenv)
	if err != nil {
		return err
	}
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}

	log := telemetry.Logger(stderr, cfg.LogLevel, cfg.LogFormat)
	slog.SetDefault(log)
	postgres.WarnPlainText(ctx, log, "DATABASE_URL", cfg.DatabaseURL)
	if cfg.DatabaseReadURL != cfg.DatabaseURL {
		postgres.WarnPlainText(ctx, log, "DATABASE_READ_URL", cfg.DatabaseReadURL)
	}

	reg := telemetry.NewRegistry()
	stopTelemetry, err := telemetry.Start(ctx, "api", reg, getenv)
	if err != nil {
		return err
	}
	defer stopTelemetry()

	db, err := openPools(ctx, cfg, log)
	defer db.close()
	if err != nil {
		return err
	}
	metrics := telemetry.NewAPI(reg)
	db.watch(reg)

	// Before any answer promises it. A later run with a shorter retention does not take it back:
	// see docs/operating.md.
	if _, err := idempotency.ExtendRetention(ctx, db.write, cfg.IdempotencyRetention); err != nil {
		return err
	}

	// What a request becomes: a batch, a transaction, an answer.
	processor := &payments.Processor{
		DB:        tracedPool{db.write},
		Retention: cfg.IdempotencyRetention,
		Render:    httpapi.Render,
		OnClaim:   metrics.Claimed,
		OnStep:    startStep,
		OnHeld: func(id uuid.UUID) {
			log.WarnContext(ctx, "account or payment is locked by another session; what needs it waits",
				"id", id)
		},
	}
	committing := newGroup(processor, cfg, metrics, log)
	telemetry.WatchQueue(reg, committing.Waiting)

	recording := newResults(processor)
	var psp *httpapi.PSPWebhooks
	if cfg.PSPWebhookSecret != "" {
		psp = &httpapi.PSPWebhooks{Secret: cfg.PSPWebhookSecret, Record: recording.Do}
	}

	var draining atomic.Bool
	watch := observer{metrics: metrics, log: log}
	handler := httpapi.New(httpapi.Options{
		Submit:           committing.Do,
		Await:            processor.Await,
		Write:            db.write,
		Read:             db.read,
		Credentials:      credentials.NewVerifier(db.auth, time.Now),
		Retention:        cfg.IdempotencyRetention,
		RateLimit:        float64(cfg.RateLimit),
		TenantMax:        cfg.TenantMax,
		AuthorizationMin: cfg.AuthorizationMin,
		PSP:              psp,
		WebhooksAllow:    config.Prefixes(cfg.WebhooksAllow),
		Ready: func(ctx context.Context) error {
			if draining.Load() {
				return errors.New("shutting down")
			}
			return db.ready(ctx)
		},
		Headers: telemetry.Headers,
		Observe: watch.request,
		Log:     log,
	})

	// Listen last: until everything is open, connections are refused.
	listener, err := net.Listen("tcp", cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("open the listener (HTTP_ADDR): %w", err)
	}
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, nil)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	profiles, err := telemetry.ListenPprof(cfg.PprofAddr)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	log.InfoContext(ctx, "api started",
		"http_addr", listener.Addr().String(), "admin_addr", admin.Addr(),
		"pprof_addr", profiles.Addr())
	defer log.InfoContext(ctx, "api stopped")

	s := service{
		server:   httpapi.Server(traced(handler, telemetry.Traces(getenv))),
		listener: listener,
		admin:    admin,
		profiles: profiles,
		commit:   committing.Run,
		record:   recording.Run,
		upkeep:   func(ctx context.Context) error { return upkeep(ctx, db.write, log) },
		drain: func() {
			// First tell the load balancer, and give it time to notice.
			draining.Store(true)
			<-time.After(cfg.ShutdownDelay)
		},
	}
	return s.run(ctx)
}

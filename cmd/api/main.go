// Command api answers HTTP: it takes payments, and shows accounts, entries and payments.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/postgres"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/migrations"
)

func main() {
	os.Exit(program.Main(api, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

var api = program.Program{
	Name:    "api",
	About:   "api takes payments over HTTP. One transaction claims the idempotency key, writes the payment and its event and stores the answer.",
	Usage:   config.Usage("api"),
	Example: "DATABASE_URL=postgres://api_write:secret@localhost:5432/oncepay api",
	Run:     run,
	Probe: func(getenv func(string) string) (string, error) {
		cfg, err := config.LoadAPI(getenv)
		return cfg.HTTPAddr, err
	},
}

// drainTimeout is how long requests in flight may take after a signal: longer than any handler, shorter than the 30 s
// that supervisors wait before they kill.
const drainTimeout = 25 * time.Second

func run(ctx context.Context, getenv func(string) string, stderr io.Writer) error {
	cfg, err := config.LoadAPI(getenv)
	if err != nil {
		return err
	}
	log := telemetry.Logger(stderr, cfg.LogLevel, cfg.LogFormat)
	slog.SetDefault(log)
	stopTracing, err := telemetry.Start(ctx, "api", getenv)
	if err != nil {
		return err
	}
	defer stopTracing()

	var write, read *pgxpool.Pool
	err = program.Together(ctx, func(ctx context.Context) (err error) {
		if write, err = postgres.Open(ctx, cfg.DatabaseURL, "api", cfg.DatabasePool, log); err != nil {
			return err
		}
		return migrations.Check(ctx, write)
	}, func(ctx context.Context) (err error) {
		read, err = postgres.Open(ctx, cfg.DatabaseReadURL, "api-read", cfg.ReadPool, log)
		return err
	})
	defer postgres.Close(write, read)
	if err != nil {
		return err
	}
	reg := telemetry.NewRegistry()
	metrics := telemetry.NewAPI(reg)
	telemetry.WatchPool(reg, "write", write.Stat)
	telemetry.WatchPool(reg, "read", read.Stat)

	processor := &payments.Processor{
		DB: write, Retention: cfg.IdempotencyRetention, Render: httpapi.Render, OnClaim: metrics.Claimed,
	}
	var draining atomic.Bool
	watch := observer{metrics: metrics, log: log, plain: cfg.LogKeys == "plain"}
	handler := httpapi.New(httpapi.Options{
		Submit: func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
			answers, err := processor.Process(ctx, []payments.Request{r})
			if err != nil {
				return idempotency.Answer{}, err
			}
			return answers[0], nil
		},
		Read:        read,
		Credentials: credentials.NewVerifier(write, time.Now),
		Retention:   cfg.IdempotencyRetention,
		RateLimit:   float64(cfg.RateLimit),
		CursorKey:   []byte(cfg.CursorSecret),
		Ready: func(ctx context.Context) error {
			if draining.Load() {
				return errors.New("shutting down")
			}
			return write.Ping(ctx)
		},
		Headers: telemetry.Headers,
		Observe: watch.request,
		Log:     log,
	})

	listener, err := net.Listen("tcp", cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("open the listener (HTTP_ADDR): %w", err)
	}
	admin, err := telemetry.ListenAdmin(cfg.AdminAddr, reg, nil)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := httpapi.Server(cfg.HTTPAddr, otelhttp.NewHandler(handler, "api"))
	log.InfoContext(ctx, "api started", "http_addr", listener.Addr().String(), "admin_addr", admin.Addr())
	defer log.InfoContext(ctx, "api stopped")

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return admin.Run(ctx) })
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		// First say no to the load balancer, then close the listener, then finish what is in flight. Serve returns at
		// once, so the wait is here.
		draining.Store(true)
		<-time.After(cfg.ShutdownDelay)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		return nil
	})
	return g.Wait()
}

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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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

// doorPool is how many look-ups of credentials there may be at once. Each is one read by primary key, and good for 30 s.
const doorPool = 4

// listenForStandby: a COMMIT that was broken off while it waited for its standby says so in a warning only.
func listenForStandby(c *pgx.ConnConfig) { c.OnNotice = idempotency.OnNotice }

// drainTimeout is how long requests in flight may take after a signal: longer than any answer takes, shorter than the 30 s
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

	// A pool of its own for credentials and readiness: neither waits for payments, nor payments for invented credentials.
	var write, read, door *pgxpool.Pool
	err = program.Together(ctx, func(ctx context.Context) (err error) {
		if write, err = postgres.Open(ctx, cfg.DatabaseURL, "api", cfg.DatabasePool, log, listenForStandby); err != nil {
			return err
		}
		return migrations.Check(ctx, write)
	}, func(ctx context.Context) (err error) {
		door, err = postgres.Open(ctx, cfg.DatabaseURL, "api", doorPool, log)
		return err
	}, func(ctx context.Context) (err error) {
		read, err = postgres.Open(ctx, cfg.DatabaseReadURL, "api-read", cfg.ReadPool, log)
		return err
	})
	defer postgres.Close(write, read, door)
	if err != nil {
		return err
	}
	// From here on the database keeps answers for at least so long, and perhaps for longer, if somebody has promised that.
	retention, err := idempotency.Promise(ctx, write, cfg.IdempotencyRetention)
	if err != nil {
		return err
	}
	reg := telemetry.NewRegistry()
	metrics := telemetry.NewAPI(reg)
	telemetry.WatchPool(reg, "write", write.Stat)
	telemetry.WatchPool(reg, "read", read.Stat)
	telemetry.WatchPool(reg, "door", door.Stat)

	processor := &payments.Processor{
		DB: write, Retention: retention, Render: httpapi.Render, OnClaim: metrics.Claimed,
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
		Credentials: credentials.NewVerifier(door, time.Now),
		Retention:   retention,
		RateLimit:   float64(cfg.RateLimit),
		CursorKey:   []byte(cfg.CursorSecret),
		Ready: func(ctx context.Context) error {
			if draining.Load() {
				return errors.New("shutting down")
			}
			return errors.Join(door.Ping(ctx), read.Ping(ctx))
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
	server := httpapi.Server(traced(handler))
	log.InfoContext(ctx, "api started", "http_addr", listener.Addr().String(), "admin_addr", admin.Addr())
	defer log.InfoContext(ctx, "api stopped")

	observed, stopObserving := context.WithCancel(context.WithoutCancel(ctx)) // the drain is worth watching
	defer stopObserving()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return admin.Run(observed) })
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		defer stopObserving()
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

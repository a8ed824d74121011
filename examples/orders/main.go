// Command orders sells what is in stock: it reserves it, charges the customer through the API of
// oncepay, and confirms the order or releases the stock. See README.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
)

const (
	workers      = 8                // calls at a time, and no more when they are slow
	writeTimeout = 20 * time.Second // a handler and its COMMIT take less: idempotency/doc.go
	drainTimeout = 25 * time.Second // after SIGTERM; the orchestrator must wait longer
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, nil)))

	if err := run(ctx); err != nil {
		slog.ErrorContext(ctx, "orders failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	shop, err := uuid.Parse(os.Getenv("SHOP_ACCOUNT"))
	if err != nil {
		return fmt.Errorf("SHOP_ACCOUNT: %w", err)
	}
	lease, err := time.ParseDuration(cmp.Or(os.Getenv("ORDERS_LEASE"), "30s"))
	if err != nil {
		return fmt.Errorf("ORDERS_LEASE: %w", err)
	}

	cfg.MaxConns = 2 * workers
	cfg.ConnConfig.OnNotice = idempotency.OnNotice // tells when a standby misses a COMMIT
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "5s"
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer db.Close()

	// Before an answer promises to be kept for so long.
	if _, err := idempotency.ExtendRetention(ctx, db, idempotency.DefaultRetention); err != nil {
		return err
	}

	listener, err := net.Listen("tcp", os.Getenv("HTTP_ADDR"))
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: routes(db, shop), ReadTimeout: handlerTimeout, WriteTimeout: writeTimeout,
	}
	slog.InfoContext(ctx, "orders started", "http_addr", listener.Addr().String())

	w := &worker{db: db, lease: lease, api: &client.Client{
		URL: os.Getenv("ONCEPAY_URL"), Token: os.Getenv("ONCEPAY_TOKEN"),
	}}
	producer := kafka.Producer{
		Brokers:     strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		TopicPrefix: os.Getenv("TOPIC_PREFIX"), Topics: []string{"orders"}, Source: "/orders",
	}
	sender := &relay.Relay{DB: db, Open: producer.Open, Name: "main"}

	// The first that fails stops the others. What is committed during the drain is sent later.
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error { return w.run(ctx) })
	}
	g.Go(func() error { return sender.Run(ctx) })
	g.Go(func() error { return keepPartitions(ctx, db) }) // makes coming days, drops old ones
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		return server.Shutdown(grace)
	})
	return g.Wait()
}

func keepPartitions(ctx context.Context, db *pgxpool.Pool) error {
	for ctx.Err() == nil {
		_, keys := idempotency.KeepPartitions(ctx, db)
		_, events := outbox.KeepPartitions(ctx, db, 7*24*time.Hour)
		if err := errors.Join(keys, events); err != nil {
			slog.WarnContext(ctx, "partitions: trying again", "error", err)
		}
		sleep(ctx, 10*time.Minute)
	}
	return nil
}

// Command minimal takes orders by HTTP and tells Kafka of each. Claim, work and event are one
// transaction; the relay that sends the events runs in the same process.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
)

const (
	handlerTimeout = 8 * time.Second  // up to the COMMIT, which takes up to 9 s: idempotency/doc.go
	writeTimeout   = 20 * time.Second // so every outcome can still be written
	drainTimeout   = 25 * time.Second // after SIGTERM; the orchestrator must wait longer
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); !errors.Is(err, http.ErrServerClosed) {
		slog.ErrorContext(ctx, "minimal failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
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

	orders := &idempotency.Handler{DB: db, Do: placeOrder,
		Scope: func(*http.Request) (tenant, client uuid.UUID, ok bool) {
			return uuid.Max, uuid.Max, true // with more than one client, from the credential
		}}
	server := &http.Server{Addr: os.Getenv("HTTP_ADDR"),
		ReadTimeout: handlerTimeout, WriteTimeout: writeTimeout}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), handlerTimeout)
		defer cancel()
		orders.ServeHTTP(w, r.WithContext(ctx))
	})
	producer := kafka.Producer{Brokers: strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
		TopicPrefix: os.Getenv("TOPIC_PREFIX"), Topics: []string{"orders"}, Source: "/minimal"}
	sender := &relay.Relay{DB: db, Open: producer.Open, Name: "main"}

	// The first that fails stops the others. What is committed during the drain is sent later.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return sender.Run(ctx) })
	g.Go(func() error { return keepPartitions(ctx, db) }) // makes coming days, drops old ones
	g.Go(server.ListenAndServe)
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		return server.Shutdown(grace)
	})
	return g.Wait()
}

// placeOrder is the work of a new request, in its transaction. It runs again after a lost race.
func placeOrder(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	// The aggregate's row first, then its event: the row's lock keeps events in order.
	id := uuid.NewString()
	var order []byte
	insert := `INSERT INTO orders (id, item) VALUES ($1, $2) RETURNING to_json(orders)`
	if err := tx.QueryRow(r.Context(), insert, id, r.FormValue("item")).Scan(&order); err != nil {
		return err
	}

	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(order) // kept until COMMIT, then sent
	return outbox.Append(r.Context(), tx, []outbox.Event{{ID: uuid.Must(uuid.NewV7()),
		AggregateType: "orders", AggregateID: id, AggregateVersion: 1,
		Type: "order.placed", Payload: order}})
}

func keepPartitions(ctx context.Context, db *pgxpool.Pool) error {
	for {
		_, keys := idempotency.KeepPartitions(ctx, db)
		_, events := outbox.KeepPartitions(ctx, db, 7*24*time.Hour)
		if err := errors.Join(keys, events); err != nil {
			slog.WarnContext(ctx, "partitions: trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Minute):
		}
	}
}

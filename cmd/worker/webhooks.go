package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/kafkalogin"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/internal/webhooks"
)

// webhooksConsumer is the name under which the inbox remembers what became deliveries. Under another
// name every event is looked at again, and those whose deliveries were deleted are sent again.
const webhooksConsumer = "webhooks"

// hooks sends events to the endpoints of tenants: a consumer makes deliveries of them, a sender sends
// those.
type hooks struct {
	db       *pgxpool.Pool
	kafka    inbox.Kafka
	consumer *inbox.Consumer
	sender   *webhooks.Sender
	metrics  *telemetry.Webhooks
	stall    *stall
	log      *slog.Logger
}

// webhooksStall is five leases of a claim.
const webhooksStall = 150 * time.Second

func newHooks(
	cfg config.Worker, reg prometheus.Registerer, stall *stall, log *slog.Logger,
) (*hooks, error) {
	options, err := kafkalogin.Options(cfg.Kafka)
	if err != nil {
		return nil, err
	}
	kafka := inbox.Kafka{
		Brokers: cfg.Brokers, Group: cfg.WebhooksGroup, ClientID: "oncepay-worker", Options: options,
		Topics: []string{cfg.TopicPrefix + "payments", cfg.TopicPrefix + "webhook-endpoints"},
	}

	consumed, metrics := telemetry.NewConsumer(reg), telemetry.NewWebhooks(reg)
	return &hooks{
		kafka: kafka,
		consumer: &inbox.Consumer{
			Kafka: kafka, Name: webhooksConsumer, Handle: handleEvents, Log: log, Retention: cfg.InboxRetention,
			OnEvent: consumed.Event, OnLag: consumed.Lag, OnLetters: consumed.Letters,
			OnGap: consumed.Gap, OnHorizon: consumed.Horizon, OnStall: consumed.Stalled,
			Trace: processing(cfg.WebhooksGroup),
		},
		sender: &webhooks.Sender{
			Allow: config.Prefixes(cfg.WebhooksAllow), Log: log,
			PerEndpoint: cfg.WebhooksPerEndpoint, Total: cfg.WebhooksConcurrency,
			OnCall: func(ctx context.Context, c webhooks.Call) (context.Context, func(string, int)) {
				began := time.Now()
				ctx, end := startWebhook(ctx, c)
				return ctx, func(outcome string, status int) {
					metrics.Called(ctx, outcome, time.Since(began))
					end(outcome, status)
				}
			},
			OnEnded: func(state webhooks.DeliveryState, n int) {
				metrics.Recorded(string(state), n)
				stall.moves()
			},
		},
		metrics: metrics,
		stall:   stall,
		log:     log,
	}, nil
}

// run runs until ctx ends. The first of the three that fails stops the others.
func (h *hooks) run(ctx context.Context, db *pgxpool.Pool) error {
	h.db, h.consumer.DB, h.sender.DB = db, db, db

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.consumer.Run(ctx) })
	g.Go(func() error { return h.sender.Run(ctx) })
	g.Go(func() error { return h.upkeep(ctx) })
	return g.Wait()
}

// handleEvents makes deliveries of the events that name a tenant. Those of older programs do not.
func handleEvents(ctx context.Context, tx pgx.Tx, events []inbox.Event) error {
	var all []webhooks.Event
	for _, e := range events {
		name := e.Attributes["tenantid"]
		if name == "" {
			continue
		}
		tenant, err := uuid.Parse(name)
		if err != nil {
			return fmt.Errorf("tenant of event %s: %w", e.ID, err)
		}

		all = append(all, webhooks.Event{
			ID: e.ID, Tenant: tenant, Type: e.Type, Source: e.Source, Subject: e.Subject,
			Time: e.Time, Sequence: e.Sequence, Payload: e.Payload,
			// As we write it ourselves, and empty if it is malformed.
			Traceparent: telemetry.Headers(
				telemetry.Continue(ctx, e.Headers["traceparent"]))["traceparent"],
		})
	}
	if len(all) == 0 {
		return nil
	}
	return webhooks.Write(ctx, tx, all)
}

// clearEvery is how often old deliveries are deleted.
const clearEvery = time.Minute

// upkeep measures how far the sender is behind, resumes endpoints that were enabled again, and deletes
// what is old.
func (h *hooks) upkeep(ctx context.Context) error {
	next := time.NewTicker(measureEvery)
	defer next.Stop()

	var cleared time.Time
	for {
		h.measure(ctx)
		if err := h.repeat(ctx, webhooks.Resume); err != nil {
			h.log.WarnContext(ctx, "webhooks of an enabled endpoint not resumed, trying again", "error", err)
		}
		if time.Since(cleared) > clearEvery {
			if err := h.repeat(ctx, webhooks.Clear); err != nil {
				h.log.WarnContext(ctx, "old webhooks not deleted, trying again", "error", err)
			}
			cleared = time.Now()
		}

		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
	}
}

func (h *hooks) measure(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()

	// A value that could not be measured is withdrawn, not left at its last reading.
	oldest, disabled, err := webhooks.Backlog(ctx, h.db)
	if err != nil {
		h.metrics.NoBacklog()
	} else {
		h.metrics.Backlog(oldest, disabled)
	}

	// The consumer of events has its own answer.
	first, tried, err := webhooks.Due(ctx, h.db)
	if err != nil {
		h.stall.unknown()
		return
	}
	h.stall.look(work{waits: !first.IsZero(), first: first, ended: tried})
}

// repeat calls step, which works in batches, until one is not full or ctx ends. Not until nothing is left:
// at an endpoint that fails without end there is always something to resume.
func (h *hooks) repeat(
	ctx context.Context, step func(context.Context, *pgxpool.Pool) (int, error),
) error {
	for ctx.Err() == nil {
		timed, cancel := context.WithTimeout(ctx, measureTimeout)
		n, err := step(timed, h.db)
		cancel()

		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil || n < webhooks.Batch:
			return err
		}
	}
	return nil
}

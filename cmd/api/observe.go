package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// observer records every request in metrics, its span and the log.
type observer struct {
	metrics *telemetry.API
	log     *slog.Logger
}

func (o observer) request(ctx context.Context, r httpapi.Observation) {
	o.metrics.Request(ctx, r.Route, r.Method, r.Status, r.Duration)
	if r.Outcome != "" {
		o.metrics.Outcome(r.Outcome)
	}

	if r.Webhook != "" {
		o.metrics.Webhook(r.Webhook)
	}

	key := ""
	if r.Key != "" {
		key = hashed(r.Key)
	}
	describe(trace.SpanFromContext(ctx), r, key)

	attrs := []slog.Attr{
		slog.String("route", r.Route),
		slog.String("method", r.Method),
		slog.Int("status", r.Status),
		slog.Duration("took", r.Duration),
		slog.String("request_id", r.RequestID),
	}

	if who := r.Identity; who.CredentialID != "" {
		attrs = append(attrs,
			slog.String("tenant_id", who.TenantID.String()),
			slog.String("client_id", who.ClientID.String()),
			slog.String("credential_id", who.CredentialID))
	}
	if key != "" {
		attrs = append(attrs,
			slog.String("key_hash", key),
			slog.String("idempotency_outcome", r.Outcome))
	}

	// The cause of a 5xx, which the client was not told, has its own line.
	o.log.LogAttrs(ctx, slog.LevelInfo, "request", attrs...)
}

// describe completes a request's span.
func describe(span trace.Span, r httpapi.Observation, key string) {
	if !span.IsRecording() {
		return
	}

	// Method and path are whatever the client sent, unless a route matched.
	if r.Route != "" {
		span.SetName(r.Method + " " + r.Route)
		span.SetAttributes(
			attribute.String("http.request.method", r.Method),
			attribute.String("http.route", r.Route))
	}
	span.SetAttributes(
		attribute.Int("http.response.status_code", r.Status),
		attribute.String("request_id", r.RequestID))
	if key != "" {
		span.SetAttributes(
			attribute.String("key_hash", key),
			attribute.String("idempotency_outcome", r.Outcome))
	}

	// The cause is in the log: it may quote what the client sent.
	if r.Status >= http.StatusInternalServerError {
		span.SetAttributes(attribute.String("error.type", strconv.Itoa(r.Status)))
		span.SetStatus(codes.Error, "")
	}
}

// hashed returns a key as logs and spans show it. Keys are often made from order numbers or names,
// so only a hash is shown; attempts under one key can still be followed.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

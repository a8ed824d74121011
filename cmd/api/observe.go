package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// traced starts a span for every request, in its client's trace if there is one. Of the path only
// the route is recorded: the path of a key's status contains the key.
func traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := telemetry.FromHeaders(r.Context(), r.Header.Get)
		ctx, span := otel.Tracer("api").Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()

		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// observer records every request in metrics, its span and the log.
type observer struct {
	metrics *telemetry.API
	log     *slog.Logger
}

func (o observer) request(ctx context.Context, r httpapi.Observation) {
	o.metrics.Request(r.Route, r.Method, r.Status, r.Duration)
	if r.Outcome != "" {
		o.metrics.Outcome(r.Outcome)
	}

	if r.Webhook != "" {
		o.metrics.Webhook(r.Webhook)
	}

	span := trace.SpanFromContext(ctx)
	if r.Route != "" { // otherwise method and path are whatever the client sent
		span.SetName(r.Method + " " + r.Route)
	}
	span.SetAttributes(
		attribute.String("http.route", r.Route),
		attribute.Int("http.response.status_code", r.Status),
		attribute.String("request_id", r.RequestID),
	)
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
	if r.Key != "" {
		key := hashed(r.Key)
		span.SetAttributes(
			attribute.String("idempotency_key", key),
			attribute.String("idempotency_outcome", r.Outcome))
		attrs = append(attrs,
			slog.String("idempotency_key", key),
			slog.String("idempotency_outcome", r.Outcome))
	}

	// The cause that the client was not told. It has its own line in the log.
	if r.Err != nil {
		span.RecordError(r.Err)
		span.SetStatus(codes.Error, "")
	}
	o.log.LogAttrs(ctx, slog.LevelInfo, "request", attrs...)
}

// hashed returns a key as logs and spans show it. Keys are often made from order numbers or names,
// so only a hash is shown; attempts under one key can still be followed.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

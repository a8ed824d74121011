package main

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/internal/webhooks"
)

// The worker continues the traces of requests: rows and events have their traceparent. What it does
// for no traced request gets no span. Its own ids are not sent to the PSP or to tenants' endpoints.

const scope = "worker"

// continued is the context of an operation: its log lines have the ids of its request.
func continued(ctx context.Context, o payments.Operation) context.Context {
	return telemetry.Continue(ctx, o.Traceparent)
}

// startCharge starts the span of a call of the PSP. Of its answer only the outcome is recorded.
func startCharge(
	ctx context.Context, server, call string, o payments.Operation,
) (context.Context, func(psp.Outcome)) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, func(psp.Outcome) {}
	}

	method, path := http.MethodPost, "/v1/charges"
	if call == "find" {
		method = http.MethodGet
	}
	if o.Kind == payments.RefundCharge {
		path = "/v1/refunds"
	}

	ctx, span := otel.Tracer(scope).Start(ctx, method+" "+path,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("http.request.method", method),
			attribute.String("url.template", path),
			attribute.Int("http.request.resend_count", o.Tries-1),
			attribute.String("operation_id", o.ID.String()),
			attribute.String("payment_id", o.PaymentID.String())),
		trace.WithAttributes(addressOf(server)...))
	return ctx, func(outcome psp.Outcome) {
		defer span.End()
		span.SetAttributes(attribute.String("psp_outcome", string(outcome)))
		if outcome != psp.Succeeded && outcome != psp.Declined {
			span.SetAttributes(attribute.String("error.type", string(outcome)))
			span.SetStatus(codes.Error, "")
		}
	}
}

// startWebhook starts the span of a call of an endpoint. Of its URL only the host is recorded: the
// rest may contain the tenant's secrets.
func startWebhook(
	ctx context.Context, c webhooks.Call,
) (context.Context, func(outcome string, status int)) {
	if c.Traceparent == "" {
		return ctx, func(string, int) {}
	}

	ctx, span := otel.Tracer(scope).Start(telemetry.Continue(ctx, c.Traceparent), "POST webhook",
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("http.request.method", http.MethodPost),
			attribute.Int("http.request.resend_count", c.Tries),
			attribute.String("event_id", c.EventID)),
		trace.WithAttributes(addressOf(c.URL)...))
	return ctx, func(outcome string, status int) {
		defer span.End()
		if status != 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", status))
		}
		if outcome == "failed" {
			span.SetAttributes(attribute.String("error.type", errorType(status)))
			span.SetStatus(codes.Error, "")
		}
	}
}

func errorType(status int) string {
	if status == 0 {
		return "_OTHER" // no answer
	}
	return strconv.Itoa(status)
}

// addressOf returns the host and the port of a URL as attributes.
func addressOf(server string) []attribute.KeyValue {
	u, err := url.Parse(server)
	if err != nil {
		return nil
	}

	port, err := strconv.Atoi(u.Port())
	switch {
	case err == nil:
	case u.Scheme == "http":
		port = 80
	default:
		port = 443
	}
	return []attribute.KeyValue{
		attribute.String("server.address", u.Hostname()), attribute.Int("server.port", port),
	}
}

// processing traces the events that a consumer group makes deliveries of.
func processing(group string) func(context.Context, inbox.Event) (context.Context, func(error)) {
	return func(ctx context.Context, e inbox.Event) (context.Context, func(error)) {
		return telemetry.Process(ctx, scope, group, telemetry.Message{
			Headers: e.Headers, ID: e.ID.String(), Type: e.Type,
			Topic: e.Topic, Partition: e.Partition, Offset: e.Offset,
		})
	}
}

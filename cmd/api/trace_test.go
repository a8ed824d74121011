package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// The tests in this file set OpenTelemetry's global tracer provider, so they are not parallel.

const (
	sampled   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	another   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// recording keeps the spans that end.
func recording(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	before, spans := otel.GetTracerProvider(), tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	return spans
}

func requests(traceparents ...string) (rs []payments.Request) {
	for _, parent := range traceparents {
		rs = append(rs, payments.Request{Headers: map[string]string{"traceparent": parent}})
	}
	return rs
}

func TestBatchLinksToItsRequests(t *testing.T) {
	spans := recording(t)
	ctx, end := startBatch(t.Context(), append(requests(unsampled, sampled, another), payments.Request{}))
	_, endStep := startStep(ctx, "claim")
	endStep(nil)
	end(errors.New("lost"))

	ended := spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans", len(ended))
	}
	step, batch, other := ended[0], ended[1], ended[2]
	if step.Name() != "claim" || step.Parent().SpanID() != batch.SpanContext().SpanID() {
		t.Errorf("%s is below %v", step.Name(), step.Parent())
	}
	first, second := telemetry.Remote(sampled), telemetry.Remote(another)
	if batch.Parent().SpanID() != first.SpanID() || batch.SpanContext().TraceID() != first.TraceID() {
		t.Errorf("the batch is below %v", batch.Parent())
	}
	if l := batch.Links(); len(l) != 2 || l[0].SpanContext.SpanID() != first.SpanID() || l[1].SpanContext.SpanID() != second.SpanID() {
		t.Errorf("the batch's links: %v", l)
	}
	if l := other.Links(); len(l) != 1 || !l[0].SpanContext.Equal(batch.SpanContext()) || other.Parent().SpanID() != second.SpanID() {
		t.Errorf("the other request's batch is below %v, its links: %v", other.Parent(), l)
	}
	if other.StartTime() != batch.StartTime() || other.Name() != batch.Name() || batch.Status().Code.String() != "Error" {
		t.Errorf("%v and %v", batch, other)
	}
}

func TestRequestSpanKeepsSecretsOut(t *testing.T) {
	spans := recording(t)
	handler := traced(httpapi.New(httpapi.Options{
		Observe: observer{telemetry.NewAPI(telemetry.NewRegistry()), slog.New(slog.DiscardHandler)}.request,
	}), true)
	r := httptest.NewRequest(http.MethodPost, "/api/v1/secret-path", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", "secret-key")
	r.Header.Set("Authorization", "Bearer oncepay_secret")
	r.Header.Add("Traceparent", sampled)
	r.Header.Add("Traceparent", another) // malformed: a new trace
	handler.ServeHTTP(httptest.NewRecorder(), r)

	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Name() != "HTTP" || ended[0].Parent().IsValid() || ended[0].SpanKind() != trace.SpanKindServer {
		t.Fatalf("%+v", ended)
	}
	hash := ""
	for _, a := range ended[0].Attributes() {
		if strings.Contains(a.Value.String(), "secret") {
			t.Errorf("%s is %s", a.Key, a.Value.String())
		}
		if a.Key == "key_hash" {
			hash = a.Value.AsString()
		}
	}
	if hash != hashed("secret-key") || len(hash) != 16 {
		t.Errorf("key_hash is %q", hash)
	}
}

// Nothing is allocated for a request of no trace.
func TestUntracedRequestAllocatesNothing(t *testing.T) {
	stop, err := telemetry.Start(t.Context(), "api", telemetry.NewRegistry(), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	handler := traced(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), false)
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/api/v1/payments", nil)
	rs := make([]payments.Request, 100)
	for name, f := range map[string]func(){
		"request": func() { handler.ServeHTTP(w, r) },
		"headers": func() { telemetry.Headers(r.Context()) },
		"observe": func() { describe(trace.SpanFromContext(r.Context()), httpapi.Observation{Status: 201}, "") },
		"batch": func() {
			ctx, end := startBatch(r.Context(), rs)
			_, endStep := startStep(ctx, "claim")
			endStep(nil)
			end(nil)
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkTracing is a request through the middleware, the API and the observer: off, and with spans that nobody gets.
func BenchmarkTracing(b *testing.B) {
	for name, exporting := range map[string]bool{"off": false, "on": true} {
		b.Run(name, func(b *testing.B) {
			before := otel.GetTracerProvider()
			b.Cleanup(func() { otel.SetTracerProvider(before) })
			otel.SetTracerProvider(noop.NewTracerProvider())
			if exporting {
				otel.SetTracerProvider(sdk.NewTracerProvider())
			}

			handler := traced(httpapi.New(httpapi.Options{
				Observe: observer{telemetry.NewAPI(telemetry.NewRegistry()), slog.New(slog.DiscardHandler)}.request,
			}), exporting)
			r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/livez", nil)
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}

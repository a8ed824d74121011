package telemetry_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// The tests in this file set OpenTelemetry's globals, so they are not parallel.

func none(string) string { return "" }

func TestTraceIDsReachEventsWithoutExporter(t *testing.T) {
	stop, err := telemetry.Start(t.Context(), "oncepay-test", telemetry.NewRegistry(), none)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	ctx, span := otel.Tracer("test").Start(t.Context(), "request")
	defer span.End()
	headers := telemetry.Headers(ctx)
	if !strings.Contains(headers["traceparent"], span.SpanContext().TraceID().String()) {
		t.Fatalf("headers = %v, span = %v", headers, span.SpanContext())
	}

	// Another process: only the headers got there.
	ctx = telemetry.FromHeaders(context.Background(), func(name string) string { return headers[name] })
	if _, consumed := otel.Tracer("test").Start(ctx, "event"); consumed.SpanContext().TraceID() != span.SpanContext().TraceID() {
		t.Errorf("trace id = %v, want %v", consumed.SpanContext().TraceID(), span.SpanContext().TraceID())
	}
}

func TestTracestateTravelsWithTraceparent(t *testing.T) {
	in := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}
	out := telemetry.Headers(telemetry.FromHeaders(t.Context(), func(name string) string { return in[name] }))
	if out["traceparent"] != in["traceparent"] || out["tracestate"] != in["tracestate"] || len(out) != 2 {
		t.Errorf("out = %v, want %v", out, in)
	}
}

func TestHeadersAreEmptyWithoutSpan(t *testing.T) {
	malformed := telemetry.FromHeaders(t.Context(), func(string) string { return "garbage" })
	if trace.SpanContextFromContext(malformed).IsValid() {
		t.Error("a malformed traceparent was accepted")
	}
	if headers := telemetry.Headers(malformed); headers == nil || len(headers) != 0 {
		t.Errorf("headers = %#v, want an empty map", headers)
	}
}

func TestStopSendsSpans(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)

	stop, err := telemetry.Start(t.Context(), "oncepay-test", telemetry.NewRegistry(), os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	_, span := otel.Tracer("test").Start(t.Context(), "a-span-to-send")
	span.End()
	stop()
	body := c.received("/v1/traces")
	for _, want := range []string{"a-span-to-send", "oncepay-test", "service.version", "service.instance.id"} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("what was sent lacks %s", want)
		}
	}
}

func TestUnknownExporterNamesTheVariable(t *testing.T) {
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"} {
		_, err := telemetry.Start(t.Context(), "oncepay-test", telemetry.NewRegistry(), func(n string) string {
			return map[string]string{name: "pigeon"}[n]
		})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=pigeon: %v", name, err)
		}
	}
}

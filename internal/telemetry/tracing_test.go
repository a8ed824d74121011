package telemetry_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// The tests in this file set OpenTelemetry's globals, so they are not parallel.

func none(string) string { return "" }

func TestWithoutAnExporterTraceIDsStillReachEvents(t *testing.T) {
	stop, err := telemetry.Start(t.Context(), "oncepay-test", none)
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

func TestWithoutASpanThereAreNoHeaders(t *testing.T) {
	malformed := telemetry.FromHeaders(t.Context(), func(string) string { return "garbage" })
	if trace.SpanContextFromContext(malformed).IsValid() {
		t.Error("a malformed traceparent was accepted")
	}
	if headers := telemetry.Headers(malformed); headers == nil || len(headers) != 0 {
		t.Errorf("headers = %#v, want an empty map", headers)
	}
}

func TestWithAnEndpointSpansAreSentBeforeShutdownReturns(t *testing.T) {
	received := make(chan []byte, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received <- body
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")

	stop, err := telemetry.Start(t.Context(), "oncepay-test", os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	_, span := otel.Tracer("test").Start(t.Context(), "a-span-to-send")
	span.End()
	stop()
	body := <-received
	for _, want := range []string{"a-span-to-send", "oncepay-test", "service.version"} {
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("what was sent lacks %s", want)
		}
	}
}

func TestAnUnknownExporterIsAnErrorThatNamesTheVariable(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "pigeon")
	_, err := telemetry.Start(t.Context(), "oncepay-test", os.Getenv)
	if err == nil || !strings.Contains(err.Error(), "OTEL_TRACES_EXPORTER") {
		t.Errorf("err = %v", err)
	}
}

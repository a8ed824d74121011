package telemetry_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// The tests in this file set OpenTelemetry's globals, so they are not parallel.

func none(string) string { return "" }

func TestClientIDsReachEventsWithoutExporter(t *testing.T) {
	stop, err := telemetry.Start(t.Context(), "oncepay-test", telemetry.NewRegistry(), none)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	ctx, span := otel.Tracer("test").Start(telemetry.Continue(t.Context(), traceparent), "request")
	defer span.End()
	if got := telemetry.Headers(ctx)["traceparent"]; got != traceparent || span.IsRecording() {
		t.Errorf("traceparent = %q, recording: %v", got, span.IsRecording())
	}
}

func TestTracestateTravelsWithTraceparent(t *testing.T) {
	in := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}
	out := telemetry.Headers(telemetry.FromHeaders(t.Context(), func(name string) string { return in[name] }))
	if out["traceparent"] != in["traceparent"] || out["tracestate"] != in["tracestate"] || len(out) != 2 {
		t.Errorf("out = %v, want %v", out, in)
	}
}

func TestMalformedTraceparentIsIgnored(t *testing.T) {
	for name, value := range map[string]string{
		"garbage":        "garbage",
		"zero trace":     "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"zero span":      "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"upper case":     "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
		"version ff":     "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"more than 00":   traceparent + "-01",
		"two of them":    traceparent + "," + traceparent,
		"no flags":       traceparent[:52],
		"a long one":     traceparent + strings.Repeat("-00", 10_000),
		"a quote inside": `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"`,
	} {
		ctx := telemetry.FromHeaders(t.Context(), func(string) string { return value })
		if headers := telemetry.Headers(ctx); headers != nil {
			t.Errorf("%s: headers = %v", name, headers)
		}
		if telemetry.Remote(value).IsValid() || telemetry.Continue(t.Context(), value) != t.Context() {
			t.Errorf("%s names a span", name)
		}
	}

	// A later version may say more, of which we pass on what we understand.
	if got := telemetry.Remote("01" + traceparent[2:] + "-more"); !got.IsSampled() {
		t.Error("a later version is ignored")
	}
}

func TestLongTracestateIsDropped(t *testing.T) {
	for size, want := range map[int]int{512: 2, 513: 1} {
		state := "a=" + strings.Repeat("x", 253) + ",b="
		state += strings.Repeat("x", size-len(state))
		in := map[string]string{"traceparent": traceparent, "tracestate": state}
		headers := telemetry.Headers(telemetry.FromHeaders(t.Context(), func(n string) string { return in[n] }))
		if len(headers) != want {
			t.Errorf("%d bytes: %v", size, headers)
		}
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

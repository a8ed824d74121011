package main

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// The test sets OpenTelemetry's global tracer provider, so it is not parallel.
func TestOnlySampledEventsGetSpans(t *testing.T) {
	before, spans := otel.GetTracerProvider(), tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })

	const id = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
	ended := time.Now()
	began := ended.Add(-time.Second)
	o := observer{metrics: telemetry.NewRelay(telemetry.NewRegistry()), prefix: "test."}
	for _, headers := range []string{
		`{}`, `{"traceparent": "`, `{"traceparent": "garbage"}`, `{"a": 1}`, `{"traceparent": "00-` + id + `-00"}`,
	} {
		if ctx := o.trace(&relay.Message{Headers: []byte(headers)}, 1, began, ended); ctx != context.Background() {
			t.Errorf("%s: a span", headers)
		}
	}
	o.trace(&relay.Message{
		EventID: uuid.New(), AggregateType: "payments", Headers: []byte(`{"ce_tenantid": "x", "traceparent": "00-` + id + `-01"}`),
	}, 7, began, ended)

	all := spans.Ended()
	if len(all) != 1 || all[0].Name() != "send test.payments" || all[0].Parent().SpanID().String() != id[33:] ||
		!all[0].StartTime().Equal(began) || !all[0].EndTime().Equal(ended) {
		t.Errorf("spans: %+v", all)
	}
}

func TestUntracedEventAllocatesNothing(t *testing.T) {
	o := observer{metrics: telemetry.NewRelay(telemetry.NewRegistry()), prefix: "test."}
	m := &relay.Message{Headers: []byte(`{"ce_tenantid": "x"}`)}
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() { o.metrics.Acknowledged(o.trace(m, 1, now, now), 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

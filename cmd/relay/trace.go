package main

import (
	"bytes"
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/telemetry"
)

// trace makes the span of an event that was sent, below the request that wrote it, and returns a
// context with it. The event's headers go to Kafka as they are: consumers continue from the request,
// too.
func (o observer) trace(m *relay.Message, batch int, began, ended time.Time) context.Context {
	ctx := context.Background()
	parent := telemetry.Remote(traceparentOf(m.Headers))
	if !parent.IsSampled() {
		return ctx
	}

	topic := o.prefix + m.AggregateType
	ctx, span := otel.Tracer("relay").Start(trace.ContextWithRemoteSpanContext(ctx, parent),
		"send "+topic, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(began),
		trace.WithAttributes(
			attribute.String("messaging.system", "kafka"),
			attribute.String("messaging.operation.name", "send"),
			attribute.String("messaging.operation.type", "send"),
			attribute.String("messaging.destination.name", topic),
			attribute.String("messaging.message.id", m.EventID.String()),
			attribute.Int("messaging.batch.message_count", batch),
			attribute.String("event_type", m.Type)))
	span.End(trace.WithTimestamp(ended))
	return ctx
}

// traceparentOf finds a traceparent in the headers of a row without decoding them: there may be
// 100,000 rows a second. jsonb puts a space behind the colon.
func traceparentOf(headers []byte) string {
	_, rest, found := bytes.Cut(headers, []byte(`"traceparent": "`))
	end := bytes.IndexByte(rest, '"')
	if !found || end < 0 {
		return ""
	}
	return string(rest[:end])
}

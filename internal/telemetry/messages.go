package telemetry

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Message is an event as it came from Kafka.
type Message struct {
	Headers   map[string]string
	ID, Type  string
	Topic     string
	Partition int32
	Offset    int64
}

// Process starts the span of an event that a consumer group processes, in the trace of the request
// that caused it, and returns a function that ends it. An event of no trace gets no span.
func Process(
	ctx context.Context, scope, group string, m Message,
) (context.Context, func(error)) {
	ctx = FromHeaders(ctx, func(name string) string { return m.Headers[name] })
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, func(error) {}
	}

	ctx, span := otel.Tracer(scope).Start(ctx, "process "+m.Topic,
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String("messaging.system", "kafka"),
			attribute.String("messaging.operation.name", "process"),
			attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.destination.name", m.Topic),
			attribute.String("messaging.destination.partition.id", strconv.Itoa(int(m.Partition))),
			attribute.Int64("messaging.kafka.offset", m.Offset),
			attribute.String("messaging.consumer.group.name", group),
			attribute.String("messaging.message.id", m.ID),
			attribute.String("event_type", m.Type)))
	return ctx, func(err error) { End(span, err) }
}

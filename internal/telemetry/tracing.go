package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
)

// Headers returns traceparent, and tracestate if there is one, of the context's span. An event
// carries them from its request to its consumers. Without a span the map is empty, not nil.
func Headers(ctx context.Context) map[string]string {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	return headers
}

// FromHeaders returns ctx with the span that Headers described as the remote parent of spans
// started from it. get returns the value of a header, or "". Malformed values are ignored.
func FromHeaders(ctx context.Context, get func(name string) string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, reader(get))
}

type reader func(string) string

func (r reader) Get(name string) string { return r(name) }
func (r reader) Set(string, string)     {}
func (r reader) Keys() []string         { return nil }

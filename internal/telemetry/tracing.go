package telemetry

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Traces reports whether Start exports spans. Where it does not, the ids that a client sends are
// still logged and passed on, and none are made.
func Traces(getenv func(string) string) bool { return exports("TRACES", getenv) }

// Headers returns traceparent, and tracestate if there is one, of the context's span. An event
// carries them from its request to its consumers. Without a span the map is nil.
func Headers(ctx context.Context) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}

	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	return headers
}

// FromHeaders returns ctx with the span that Headers described as the remote parent of spans
// started from it. get returns the value of a header, or "". Malformed values are ignored.
func FromHeaders(ctx context.Context, get func(name string) string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, reader(get))
}

// Remote returns the span that a traceparent names. It is not valid if the traceparent is malformed
// or empty.
func Remote(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}

	ctx := FromHeaders(context.Background(), func(name string) string {
		if name == "traceparent" {
			return traceparent
		}
		return ""
	})
	return trace.SpanContextFromContext(ctx)
}

// Continue returns ctx with the span that a traceparent names as the remote parent of spans started
// from it, or ctx itself if it names none.
func Continue(ctx context.Context, traceparent string) context.Context {
	if parent := Remote(traceparent); parent.IsValid() {
		return trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	return ctx
}

// End ends a span, as failed if there is an error. The error's text stays in the log: it may quote
// what others sent.
func End(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// maxTracestate is what the specification asks everyone to pass on. A longer one is dropped, which it
// allows: it would be stored with every event.
const maxTracestate = 512

type reader func(string) string

func (r reader) Get(name string) string {
	value := r(name)
	if name == "tracestate" && len(value) > maxTracestate {
		return ""
	}
	return value
}

func (r reader) Set(string, string) {}
func (r reader) Keys() []string     { return nil }

// observe puts the trace of the context's span beside the value, as an exemplar, if it is sampled.
func observe(ctx context.Context, o prometheus.Observer, value float64) {
	span := trace.SpanContextFromContext(ctx)
	if with, can := o.(prometheus.ExemplarObserver); can && span.IsSampled() {
		with.ObserveWithExemplar(value, prometheus.Labels{"trace_id": span.TraceID().String()})
		return
	}
	o.Observe(value)
}

// Package telemetry binds the programs to slog, OpenTelemetry and Prometheus, so that the packages
// that do the work know none of them: they take a *slog.Logger and callbacks, which the methods of
// API, Relay and Consumer fit.
//
// Metrics are always served on the private listener. Spans are made only if OpenTelemetry's own
// variables configure a destination; the trace ids that clients send are always logged and passed
// on. A collector that is down costs traces, never payments.
package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// Logger returns a logger that writes "text" or, for any other format, JSON, and puts trace_id and
// span_id of the context's span on every line.
func Logger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}

	if format == "text" {
		return slog.New(traceHandler{slog.NewTextHandler(w, options)})
	}
	return slog.New(traceHandler{slog.NewJSONHandler(w, options)})
}

// traceHandler adds the ids last: in a logger with an open group they land in that group.
type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(
			slog.String("trace_id", span.TraceID().String()),
			slog.String("span_id", span.SpanID().String()),
		)
	}
	return h.Handler.Handle(ctx, r)
}

func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(attrs)}
}

func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const flushTimeout = 3 * time.Second

// Start sets OpenTelemetry's global tracer provider and propagator (W3C trace context and baggage). The service is known
// under the name given unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise.
//
// Without OTEL_TRACES_EXPORTER=otlp or an OTLP endpoint nothing is exported. With one, spans go out as OTLP over HTTP, and
// OpenTelemetry itself reads its other variables, from the process's environment. Other exporters are not built in: a
// collector translates, and gRPC alone would double the time of the first build. A collector that cannot be reached is no error here. stop sends what is
// still in memory, for at most 3 s.
func Start(ctx context.Context, service string, getenv func(string) string) (stop func(), err error) {
	res, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version())),
		resource.WithFromEnv(), // last: it wins
	)
	if err != nil {
		return nil, fmt.Errorf("describe %s to OpenTelemetry (OTEL_RESOURCE_ATTRIBUTES): %w", service, err)
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(res)}
	if name := getenv("OTEL_TRACES_EXPORTER"); name != "" && name != "otlp" && name != "none" {
		return nil, errors.New("OTEL_TRACES_EXPORTER must be otlp or none")
	}
	if exports(getenv) {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("make trace exporter (OTEL_EXPORTER_OTLP_…): %w", err)
		}
		options = append(options, sdktrace.WithBatcher(exporter))
	}
	provider := sdktrace.NewTracerProvider(options...)
	otel.SetTracerProvider(provider)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		slog.Default().WarnContext(context.Background(), "traces not exported", slog.Any("error", err))
	}))
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			slog.Default().WarnContext(ctx, "last traces not exported", slog.Any("error", err))
		}
	}, nil
}

// exports: left alone, the exporter would send to localhost:4318 and complain for ever where nobody listens.
func exports(getenv func(string) string) bool {
	if getenv("OTEL_SDK_DISABLED") == "true" || getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		if getenv(name) != "" {
			return true
		}
	}
	return false
}

// Headers returns traceparent, and tracestate if there is one, of the context's span: what an event carries from the
// request that caused it to whoever consumes it. Without a span the map is empty, never nil.
func Headers(ctx context.Context) map[string]string {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	return headers
}

// FromHeaders returns ctx with the span that Headers described, as the remote parent of the spans started from it. get
// returns the value of a header, empty if there is none; malformed values are ignored.
func FromHeaders(ctx context.Context, get func(name string) string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, reader(get))
}

type reader func(string) string

func (r reader) Get(name string) string { return r(name) }
func (r reader) Set(string, string)     {}
func (r reader) Keys() []string         { return nil }

// release is set by the build (-ldflags -X), for builds outside a checkout.
var release string

// version is the build's, or the module's: a tag, or a pseudo-version with the commit; "(devel)" under go run and go test.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

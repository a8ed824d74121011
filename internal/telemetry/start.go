package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

const flushTimeout = 3 * time.Second

// Start sets OpenTelemetry's global tracer provider and starts the export of the registry's metrics.
// service is the service's name, and host and process identify the instance, unless
// OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise.
//
// Nothing is exported without an OTLP endpoint, OTEL_TRACES_EXPORTER=otlp or
// OTEL_METRICS_EXPORTER=otlp. With one, spans or metrics or both are sent as OTLP over HTTP,
// metrics every minute (OTEL_METRIC_EXPORT_INTERVAL) under the names that /metrics shows.
// OpenTelemetry itself reads its other variables from the process's environment. Other exporters
// are not built in: use a collector to translate; gRPC alone would double the time of the first
// build.
//
// A collector that cannot be reached is not an error here. stop sends what is still in memory, and
// the metrics as they are then, for at most 3 s.
func Start(
	ctx context.Context, service string, metrics prometheus.Gatherer, getenv func(string) string,
) (stop func(), err error) {
	for _, kind := range []string{"TRACES", "METRICS"} {
		name := "OTEL_" + kind + "_EXPORTER"
		if chosen := getenv(name); chosen != "" && chosen != "otlp" && chosen != "none" {
			return nil, errors.New(name + " must be otlp or none")
		}
	}

	res, err := describe(ctx, service)
	if err != nil {
		return nil, err
	}

	// The exporters run beside everything else: what they cannot send is a line in the log.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		slog.Default().WarnContext(context.Background(),
			"traces or metrics not exported", slog.Any("error", err))
	}))

	// A span that goes nowhere would cost as much as one that is sent.
	otel.SetTracerProvider(noop.NewTracerProvider())
	stopTraces := func(context.Context) error { return nil }
	if Traces(getenv) {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("make trace exporter (OTEL_EXPORTER_OTLP_…): %w", err)
		}

		traces := trace.NewTracerProvider(trace.WithResource(res), trace.WithBatcher(exporter))
		otel.SetTracerProvider(traces)
		stopTraces = traces.Shutdown
	}

	measuring := []metric.Option{metric.WithResource(res)}
	if exports("METRICS", getenv) {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("make metric exporter (OTEL_EXPORTER_OTLP_…): %w", err)
		}

		gathered := bridge.NewMetricProducer(bridge.WithGatherer(metrics))
		reader := metric.NewPeriodicReader(exporter, metric.WithProducer(gathered))
		measuring = append(measuring, metric.WithReader(reader))
	}

	meters := metric.NewMeterProvider(measuring...)
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()

		if err := errors.Join(stopTraces(ctx), meters.Shutdown(ctx)); err != nil {
			slog.Default().WarnContext(ctx,
				"last traces or metrics not exported", slog.Any("error", err))
		}
	}, nil
}

func describe(ctx context.Context, service string) (*resource.Resource, error) {
	// Without an instance id, the counters of two instances would be one.
	host, _ := os.Hostname()
	instance := fmt.Sprintf("%s/%d", host, os.Getpid())

	res, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", service),
			attribute.String("service.version", version()),
			attribute.String("service.instance.id", instance)),
		resource.WithFromEnv(), // last, so that it wins
	)
	if err != nil {
		err = fmt.Errorf("describe %s to OpenTelemetry (OTEL_RESOURCE_ATTRIBUTES): %w", service, err)
	}
	return res, err
}

// exports reports whether to export a kind of data. By default the exporters would send to
// localhost:4318, and complain where nothing listens.
func exports(kind string, getenv func(string) string) bool {
	exporter := "OTEL_" + kind + "_EXPORTER"
	if getenv("OTEL_SDK_DISABLED") == "true" || getenv(exporter) == "none" {
		return false
	}

	endpoint := "OTEL_EXPORTER_OTLP_" + kind + "_ENDPOINT"
	for _, name := range []string{exporter, "OTEL_EXPORTER_OTLP_ENDPOINT", endpoint} {
		if getenv(name) != "" {
			return true
		}
	}
	return false
}

// release is set by the build (-ldflags -X), for builds outside a checkout.
var release string

// version returns the build's release, or the module's version: a tag, or a pseudo-version with the
// commit. It is "(devel)" under go run and go test.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

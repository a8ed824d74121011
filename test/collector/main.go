// Command collector is an OpenTelemetry Collector with what deploy/otel/collector.yaml names, for
// test/e2e. It is a module of its own, so that the collector's dependencies are not this project's.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry"
	"go.uber.org/zap"
)

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: version()},
		Factories: components,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: []confmap.ProviderFactory{
					envprovider.NewFactory(),  // ${…}, which the command insists on
					fileprovider.NewFactory(), // --config
					yamlprovider.NewFactory(), // --set
				},
			},
		},
	})

	if err := command.Execute(); err != nil {
		os.Exit(1) // the command has printed it
	}
}

func components() (otelcol.Factories, error) {
	f := otelcol.Factories{
		Telemetry: telemetry.NewFactory(noConfig, telemetry.WithCreateLogger(logger)),
	}

	var err error
	if f.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](
		otlpreceiver.NewFactory()); err != nil {
		return f, fmt.Errorf("receivers: %w", err)
	}
	if f.Processors, err = otelcol.MakeFactoryMap[processor.Factory](
		memorylimiterprocessor.NewFactory(), batchprocessor.NewFactory()); err != nil {
		return f, fmt.Errorf("processors: %w", err)
	}
	if f.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](
		otlpexporter.NewFactory()); err != nil {
		return f, fmt.Errorf("exporters: %w", err)
	}
	return f, nil
}

// Of its own telemetry this collector has only the log. The usual kind, service::telemetry, would add
// 115 packages to the 746 to compile, and listen on a fixed port.
func logger(
	context.Context, telemetry.LoggerSettings, component.Config,
) (*zap.Logger, component.ShutdownFunc, error) {
	l, err := zap.NewProduction()
	return l, nil, err
}

func noConfig() component.Config { return &struct{}{} }

// version returns the version of the collector that this is built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "go.opentelemetry.io/collector/otelcol" {
				return strings.TrimPrefix(m.Version, "v")
			}
		}
	}
	return "unknown"
}

package telemetry

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry with what every program shows: the Go runtime, the process, and
// build_info.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "build_info", Help: "Always 1. Its labels name the running version.",
		ConstLabels: prometheus.Labels{"version": version(), "goversion": runtime.Version()},
	})
	build.Set(1)

	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	reg.MustRegister(collectors.NewGoCollector(), process, build)
	return reg
}

// PoolStat is the part of *pgxpool.Stat that WatchPool shows.
type PoolStat interface {
	AcquiredConns() int32
	IdleConns() int32
	TotalConns() int32
	MaxConns() int32
	EmptyAcquireCount() int64
	EmptyAcquireWaitTime() time.Duration
}

// WatchPool shows a pool's connections and waits under the label pool=name. It calls stat at every scrape, as
// in WatchPool(reg, "write", pool.Stat).
func WatchPool[S PoolStat](reg prometheus.Registerer, name string, stat func() S) {
	labels := prometheus.Labels{"pool": name}
	gauge := func(metric, help string, value func(S) int32) {
		reg.MustRegister(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: metric, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(stat())) }))
	}

	gauge("db_pool_acquired_connections",
		"Database connections in use. At db_pool_max_connections, requests wait for one.",
		S.AcquiredConns)
	gauge("db_pool_idle_connections", "Database connections open and free.", S.IdleConns)
	gauge("db_pool_total_connections",
		"Database connections in use, free or being opened.", S.TotalConns)
	gauge("db_pool_max_connections", "Most connections the pool may open.", S.MaxConns)

	counter := func(metric, help string, value func(S) float64) {
		reg.MustRegister(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: metric, Help: help, ConstLabels: labels},
			func() float64 { return value(stat()) }))
	}

	counter("db_pool_waits_total",
		"How often a connection was waited for: none was free, or one had to be opened.",
		func(s S) float64 { return float64(s.EmptyAcquireCount()) })
	counter("db_pool_wait_seconds_total", "Time spent in these waits, of all waiters together.",
		func(s S) float64 { return s.EmptyAcquireWaitTime().Seconds() })
}

// waiting suits what goes over a network and may wait for a database or a broker.
var waiting = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	o := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	return prometheus.NewHistogram(o)
}

func histograms(
	name, help string, buckets []float64, labels ...string,
) *prometheus.HistogramVec {
	o := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	return prometheus.NewHistogramVec(o, labels)
}

// measured returns a gauge that is absent until it is first set, and again after Reset: 0 would
// mean that all is well where nothing was measured.
func measured(name, help string) *prometheus.GaugeVec { return gauges(name, help) }

func set(g *prometheus.GaugeVec, value float64) { g.WithLabelValues().Set(value) }

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

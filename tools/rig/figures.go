package rig

import (
	"context"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	dto "github.com/prometheus/client_model/go"

	"github.com/oncepay/oncepay/internal/scrape"
)

// Latencies are durations from a microsecond to ten minutes, with three digits.
type Latencies struct{ *hdrhistogram.Histogram }

// NewLatencies has none yet.
func NewLatencies() Latencies {
	return Latencies{hdrhistogram.New(1, (10 * time.Minute).Microseconds(), 3)}
}

// Record adds a duration.
func (l Latencies) Record(d time.Duration) {
	_ = l.RecordValue(min(max(1, d.Microseconds()), l.HighestTrackableValue()))
}

// Millis returns the quantile of that percentage in milliseconds.
func (l Latencies) Millis(percent float64) float64 {
	return float64(l.ValueAtQuantile(percent)) / 1000
}

// Metrics returns what a program shows on its private listener.
func Metrics(ctx context.Context, admin string) (map[string]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return scrape.Metrics(ctx, admin)
}

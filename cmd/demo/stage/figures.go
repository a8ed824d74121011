package stage

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// each calls visit with what every process of these kinds, or of all, showed first and last of a
// metric, and how many seconds lie between.
func (m *metrics) each(name string, kinds []string, visit func(first, last *dto.MetricFamily, seconds float64)) {
	m.mu.Lock()
	defer m.mu.Unlock()

	for _, s := range m.programs {
		if len(s.samples) < 2 || len(kinds) > 0 && !slices.Contains(kinds, s.kind) {
			continue
		}
		first, last := s.samples[0], s.samples[len(s.samples)-1]
		if last.families[name] != nil {
			visit(first.families[name], last.families[name], last.at.Sub(first.at).Seconds())
		}
	}
}

// rate is by how much a counter, or the count of a histogram, grows in a second.
func (m *metrics) rate(name string, kinds ...string) (rate float64) {
	m.each(name, kinds, func(first, last *dto.MetricFamily, seconds float64) {
		rate += (count(last) - count(first)) / seconds
	})
	return rate
}

func count(f *dto.MetricFamily) (n float64) {
	for _, m := range f.GetMetric() {
		n += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return n
}

// gauge is the sum of a gauge's values now.
func (m *metrics) gauge(name string, kinds ...string) (sum float64) {
	m.each(name, kinds, func(_, last *dto.MetricFamily, _ float64) {
		for _, m := range last.GetMetric() {
			sum += m.GetGauge().GetValue()
		}
	})
	return sum
}

// mean is that of what a histogram has observed.
func (m *metrics) mean(name string) float64 {
	var n, sum float64
	m.each(name, nil, func(first, last *dto.MetricFamily, _ float64) {
		n += count(last) - count(first)
		sum += total(last) - total(first)
	})
	return sum / max(n, 1)
}

func total(f *dto.MetricFamily) (sum float64) {
	for _, m := range f.GetMetric() {
		sum += m.GetHistogram().GetSampleSum()
	}
	return sum
}

// quantiles are median and 99th percentile of a histogram in milliseconds, as Prometheus would
// estimate them; nil if it has observed nothing.
func (m *metrics) quantiles(name string) (p50, p99 *float64) {
	buckets := map[float64]float64{} // by upper bound: how many are below it
	m.each(name, nil, func(first, last *dto.MetricFamily, _ float64) {
		below(buckets, last, 1)
		below(buckets, first, -1)
	})

	var bounds []float64
	for bound := range buckets {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	if len(bounds) == 0 || buckets[bounds[len(bounds)-1]] < 1 {
		return nil, nil
	}
	return quantile(.5, bounds, buckets), quantile(.99, bounds, buckets)
}

func below(buckets map[float64]float64, f *dto.MetricFamily, sign float64) {
	for _, m := range f.GetMetric() {
		for _, b := range m.GetHistogram().GetBucket() {
			buckets[b.GetUpperBound()] += sign * float64(b.GetCumulativeCount())
		}
	}
}

func quantile(q float64, bounds []float64, below map[float64]float64) *float64 {
	wanted, from, before := q*below[bounds[len(bounds)-1]], 0.0, 0.0
	for _, bound := range bounds {
		n := below[bound]
		if n >= wanted && n > before {
			if math.IsInf(bound, 1) {
				bound = from // beyond the last bound: at least that
			}
			v := 1000 * (from + (bound-from)*(wanted-before)/(n-before))
			return &v
		}
		from, before = bound, n
	}
	return nil
}

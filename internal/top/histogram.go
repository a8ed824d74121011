package top

import (
	"math"

	dto "github.com/prometheus/client_model/go"
)

// histogram is how many observations were at most each bound.
type histogram struct {
	bounds []float64 // ascending; the last is +Inf
	counts []float64 // cumulative
	sum    float64
}

func newHistogram(h *dto.Histogram) (made histogram) {
	for _, b := range h.GetBucket() {
		made.bounds = append(made.bounds, b.GetUpperBound())
		made.counts = append(made.counts, float64(b.GetCumulativeCount()))
	}

	// The text has +Inf as a bucket; other encodings leave it out.
	if n := len(made.bounds); n > 0 && !math.IsInf(made.bounds[n-1], 1) {
		made.bounds = append(made.bounds, math.Inf(1))
		made.counts = append(made.counts, float64(h.GetSampleCount()))
	}
	made.sum = h.GetSampleSum()
	return made
}

func (h histogram) count() float64 {
	if len(h.counts) == 0 {
		return 0
	}
	return h.counts[len(h.counts)-1]
}

// mean is NaN without observations.
func (h histogram) mean() float64 { return h.sum / h.count() }

// minus returns what was observed after before. A histogram that fell, or has other bounds, began
// again: all it has is new.
func (h histogram) minus(before histogram) histogram {
	if len(before.bounds) != len(h.bounds) {
		return h
	}

	left := histogram{bounds: h.bounds, counts: make([]float64, len(h.counts)), sum: h.sum - before.sum}
	for i := range h.counts {
		if h.counts[i] < before.counts[i] || h.bounds[i] != before.bounds[i] {
			return h
		}
		left.counts[i] = h.counts[i] - before.counts[i]
	}
	return left
}

// plus adds one of the same bounds, as all histograms of one name have. One of others, from another
// version, is left out.
func (h histogram) plus(other histogram) histogram {
	switch {
	case len(h.bounds) == 0:
		return other
	case len(h.bounds) != len(other.bounds):
		return h
	}

	both := histogram{bounds: h.bounds, counts: make([]float64, len(h.counts)), sum: h.sum + other.sum}
	for i := range h.counts {
		both.counts[i] = h.counts[i] + other.counts[i]
	}
	return both
}

// quantile returns the value below which the share q of the observations lies, as Prometheus'
// histogram_quantile does: linear within its bucket, the first of which begins at 0. Beyond the last
// finite bound it is that bound. Without observations it is NaN.
func (h histogram) quantile(q float64) float64 {
	if h.count() == 0 {
		return math.NaN()
	}
	rank := q * h.count()

	below, start := 0.0, 0.0
	for i, bound := range h.bounds {
		if h.counts[i] < rank {
			below, start = h.counts[i], bound
			continue
		}
		if in := h.counts[i] - below; !math.IsInf(bound, 1) && in > 0 {
			return start + (bound-start)*(rank-below)/in
		}
		break
	}
	return start
}

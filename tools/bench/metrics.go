package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// scrape returns what an admin listener shows, in Prometheus' text format.
func scrape(ctx context.Context, admin string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return "", fmt.Errorf("read metrics of the API: %w", err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", fmt.Errorf("read metrics of the API: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("read metrics of the API: %w", err)
	}
	return string(text), nil
}

// histogram is one without labels: how many values were at most a bound, bounds rising, the last one infinite.
type histogram struct {
	bounds []float64
	counts []float64
	sum    float64
}

// histogramOf finds a histogram in a scrape.
func histogramOf(text, name string) (h histogram, err error) {
	for line := range strings.Lines(text) {
		var in *float64
		line = strings.TrimSpace(line)
		bucket, isBucket := strings.CutPrefix(line, name+`_bucket{le="`)
		sum, isSum := strings.CutPrefix(line, name+"_sum ")
		switch {
		case isBucket:
			bound, count, ok := strings.Cut(bucket, `"} `)
			if !ok {
				return h, fmt.Errorf("read %s: not a bucket: %q", name, line)
			}
			le, err := strconv.ParseFloat(bound, 64)
			if err != nil {
				return h, fmt.Errorf("read %s: not a bucket: %q", name, line)
			}
			h.bounds, h.counts = append(h.bounds, le), append(h.counts, 0)
			in, sum = &h.counts[len(h.counts)-1], count
		case isSum:
			in = &h.sum
		default:
			continue
		}
		if *in, err = strconv.ParseFloat(sum, 64); err != nil {
			return h, fmt.Errorf("read %s: not a number: %q", name, line)
		}
	}
	if len(h.bounds) == 0 || !math.IsInf(h.bounds[len(h.bounds)-1], 1) {
		return h, fmt.Errorf("read %s: the API does not show this histogram", name)
	}
	return h, nil
}

// since is what came after an earlier scrape of the same process.
func (h histogram) since(before histogram) histogram {
	d := histogram{bounds: h.bounds, counts: append([]float64(nil), h.counts...), sum: h.sum - before.sum}
	for i := range d.counts {
		d.counts[i] -= before.counts[i]
	}
	return d
}

func (h histogram) count() float64 { return h.counts[len(h.counts)-1] }

func (h histogram) mean() float64 { return h.sum / h.count() }

// share of the values that are at most bound, which must be the bound of a bucket. NaN: there are no values.
func (h histogram) share(bound float64) float64 {
	if i := slices.Index(h.bounds, bound); i >= 0 {
		return h.counts[i] / h.count()
	}
	return math.NaN()
}

// atMost returns the least bound that the share q of the values does not exceed: the true quantile is below. NaN: there are no values.
func (h histogram) atMost(q float64) float64 {
	if h.count() == 0 {
		return math.NaN()
	}
	for i, n := range h.counts {
		if n >= q*h.count() {
			return h.bounds[i]
		}
	}
	return math.Inf(1)
}

package top_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/top"
)

// bounds are those of most of our histograms.
var bounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// exposed is a histogram of samples as a program shows it.
func exposed(samples, bounds []float64) string {
	var b strings.Builder
	b.WriteString("# TYPE h histogram\n")
	for _, bound := range bounds {
		n := 0
		for _, s := range samples {
			if s <= bound {
				n++
			}
		}
		fmt.Fprintf(&b, "h_bucket{le=\"%v\"} %d\n", bound, n)
	}
	fmt.Fprintf(&b, "h_bucket{le=\"+Inf\"} %d\nh_sum 1\nh_count %d\n", len(samples), len(samples))
	return b.String()
}

func quantile(t *testing.T, q float64, text string) float64 {
	t.Helper()
	f, err := top.Quantile(q, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return float64(f)
}

// TestQuantilesOfKnownDistributions: a quantile lies in the bucket of the true one, and where values
// are even within a bucket, it is the true one.
func TestQuantilesOfKnownDistributions(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"uniform":     random.Float64,
		"exponential": func() float64 { return random.ExpFloat64() / 50 },
		"log-normal":  func() float64 { return math.Exp(random.NormFloat64()*1.5 - 4) },
		"constant":    func() float64 { return .03 },
		"two humps": func() float64 {
			if random.IntN(10) == 0 {
				return .8 + random.Float64()/10
			}
			return .002 + random.Float64()/1000
		},
	} {
		for _, n := range []int{1, 2, 10, 1000} {
			samples := make([]float64, n)
			for i := range samples {
				samples[i] = draw()
			}
			slices.Sort(samples)
			text := exposed(samples, bounds)

			before := 0.0
			for _, q := range []float64{.01, .1, .5, .9, .99, 1} {
				got := quantile(t, q, text)
				truth := samples[max(0, int(math.Ceil(q*float64(n)))-1)]
				i, _ := slices.BinarySearch(bounds, truth)
				low := 0.0
				if i > 0 {
					low = bounds[i-1]
				}
				if got < low || got > bounds[min(i, len(bounds)-1)] || got < before {
					t.Errorf("%s, %d samples: q %v is %v, after %v; in truth it is %v", name, n, q, got, before, truth)
				}
				before = got
			}
		}
	}

	even := make([]float64, 10_000)
	for i := range even {
		even[i] = float64(i+1) / float64(len(even))
	}
	for _, q := range []float64{.1, .5, .75, .9, .99} {
		if got := quantile(t, q, exposed(even, bounds)); math.Abs(got-q) > 1e-4 {
			t.Errorf("q %v of evenly spread values is %v", q, got)
		}
	}
}

// TestQuantilesAsPrometheus: the examples are what histogram_quantile gives.
func TestQuantilesAsPrometheus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		samples []float64
		q, want float64
	}{
		"half way into the first bucket":    {[]float64{.5, .5}, .5, .5},
		"a third into the second":           {[]float64{.5, 1.5, 1.5, 1.5}, .5, 1 + 1./3},
		"beyond the last finite bound":      {[]float64{.5, 100}, .99, 4},
		"at a bound":                        {[]float64{1, 2}, .5, 1},
		"an empty bucket is passed over":    {[]float64{.5, 3}, .75, 3},
		"nothing observed is no 0":          {nil, .5, math.NaN()},
		"all of them beyond the last bound": {[]float64{50, 60}, .5, 4},
	} {
		got := quantile(t, c.q, exposed(c.samples, []float64{1, 2, 4}))
		if !(math.Abs(got-c.want) < 1e-9) && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

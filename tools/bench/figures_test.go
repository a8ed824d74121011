package main

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const scraped = `# HELP claim_seconds Time.
# TYPE claim_seconds histogram
claim_seconds_bucket{le="0.0005"} 10
claim_seconds_bucket{le="0.001"} 99
claim_seconds_bucket{le="+Inf"} 100
claim_seconds_sum 0.5
claim_seconds_count 100
claim_seconds_more_bucket{le="0.0005"} 7
`

func TestAQuantileOfAHistogramIsTheBoundThatIsNotExceeded(t *testing.T) {
	t.Parallel()
	h, err := histogramOf(scraped, "claim_seconds")
	if err != nil {
		t.Fatal(err)
	}
	for q, want := range map[float64]float64{.05: .0005, .1: .0005, .11: .001, .99: .001, .991: math.Inf(1), 1: math.Inf(1)} {
		if got := h.atMost(q); got != want {
			t.Errorf("the quantile %g is at most %g, want %g", q, got, want)
		}
	}
	if h.count() != 100 || h.mean() != .005 {
		t.Errorf("count %g, mean %g", h.count(), h.mean())
	}
	later, err := histogramOf(strings.NewReplacer(" 10\n", " 10\n", " 99\n", " 102\n", " 100\n", " 104\n", " 0.5\n", " 0.7\n").Replace(scraped), "claim_seconds")
	if err != nil {
		t.Fatal(err)
	}
	since := later.since(h)
	if since.count() != 4 || since.atMost(.75) != .001 || !math.IsInf(since.atMost(.76), 1) || math.Abs(since.sum-.2) > 1e-9 {
		t.Errorf("what came after: %+v", since)
	}
	if q := h.since(h).atMost(.99); !math.IsNaN(q) {
		t.Errorf("the quantile of nothing is %g", q)
	}
}

func TestAHistogramThatIsNotThereIsAnError(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing": "", "another": scraped, "no end": "x_bucket{le=\"1\"} 1\n", "no bound": "x_bucket{le=\"a\"} 1\n",
		"no count": "x_bucket{le=\"+Inf\"} many\n", "labels": "x_bucket{le=\"1\",a=\"b\"} 1\n",
	} {
		if _, err := histogramOf(text, "x"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestTheMedianIsOfWhatIsANumber(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}, {[]float64{math.NaN(), 5, 1, 3}, 3},
	} {
		if got := (figures{"x": c.values}).median("x"); got != c.want {
			t.Errorf("median of %v is %g, want %g", c.values, got, c.want)
		}
	}
	for _, values := range [][]float64{nil, {math.NaN()}} {
		if got := (figures{"x": values}).median("x"); !math.IsNaN(got) {
			t.Errorf("median of %v is %g", values, got)
		}
	}
}

func TestTheJSONHasEveryFigureAndNullForWhatWasNotMeasured(t *testing.T) {
	t.Parallel()
	f := figures{"ratio": {4, 4.123456, 5}, "rss_mib": {123.456}, "claim_p99_ms": {math.Inf(1)}}
	var got map[string]any
	if err := json.Unmarshal(f.json(always, map[string]any{"rounds": 3}), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"rounds": 3.0, "ratio": 4.12, "rss_mib": 123.0}
	for _, name := range always {
		if _, set := want[name]; !set {
			want[name] = nil
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCPUTimeIsReadWhateverAProgramCallsItself(t *testing.T) {
	t.Parallel()
	line := "42 (post) gres: (x) S 7 42 42 0 -1 4194560 100 200 0 0 150 50 30 20 20 0 1 0 12345 1000 100"
	got, err := parseStat(line)
	want := stat{parent: 7, time: 2 * time.Second, childrenTime: 500 * time.Millisecond}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, line := range []string{"", "42 (x) S 7 42", strings.Replace(line, "150", "many", 1)} {
		if got, err := parseStat(line); err == nil {
			t.Errorf("%q was taken for %+v", line, got)
		}
	}
}

func TestEveryWrongFlagIsOneClearLine(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                          "what is to be measured?",
		"outtake":                                   `unknown benchmark "outtake"`,
		"intake -fast":                              "flag provided but not defined: -fast",
		"intake now":                                `unknown argument "now"`,
		"intake -connections 0":                     "-connections must be 1 to 1000",
		"intake -connections 1001":                  "-connections must be 1 to 1000",
		"intake -connections many":                  "invalid value",
		"intake -accounts 1":                        "-accounts must be 2 to 10000",
		"intake -accounts 10001":                    "-accounts must be 2 to 10000",
		"intake -duplicates -0.1":                   "-duplicates must be 0 to 0.9",
		"intake -duplicates NaN":                    "-duplicates must be 0 to 0.9",
		"intake -rate -5":                           "-rate must be 1 to 100000",
		"intake -rate NaN":                          "-rate must be 1 to 100000",
		"intake -seconds 0":                         "-seconds must be 1 to 600",
		"intake -warmup -1":                         "-warmup must be 0 to 60",
		"intake -rounds 0":                          "-rounds must be 1 to 50",
		"intake -stored -1":                         "-stored must be 1000 to 100000000",
		"intake -stored 999999999":                  "-stored must be 1000 to 100000000",
		"intake -api LOG_LEVEL=warn":                "the benchmark sets it by itself",
		"intake -api committers=4":                  "NAME=VALUE",
		"intake -smoke -rounds 9":                   "-smoke decides by itself what -rounds asks for",
		"intake -database-url nonsense://hunter2:y": "-database-url must be like postgres://",
		"intake -database-url postgres://x@127.0.0.1:1/y -stored 1000": "leave out -database-url",
		"intake -database-url postgres://u:hunter2@127.0.0.1:1/y":      "connect to Postgres:",
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), strings.Fields(args), &stdout, &stderr)
		said := stderr.String()
		if code != 1 || !strings.Contains(said, want) || strings.Count(said, "\n") != 1 || strings.Contains(said, "hunter2") || stdout.Len() > 0 {
			t.Errorf("bench %s: exit code %d, %q, want %q", args, code, said, want)
		}
	}
}

func TestTheHelpHasExamples(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-h", "--help", "intake -h"} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "go run ./tools/bench intake") || stderr.Len() > 0 {
			t.Errorf("bench %s: exit code %d\n%s%s", args, code, &stdout, &stderr)
		}
	}
}

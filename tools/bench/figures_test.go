package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/process"
	"github.com/oncepay/oncepay/tools/rig"
)

// api shows these metrics, one text after the other.
func api(t *testing.T, texts ...string) *process.Process {
	t.Helper()
	shown := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, texts[shown])
		shown++
	}))
	t.Cleanup(server.Close)
	return &process.Process{Admin: strings.TrimPrefix(server.URL, "http://")}
}

const scraped = `# HELP claim_seconds Time.
# TYPE claim_seconds histogram
claim_seconds_bucket{le="0.0005"} 10
claim_seconds_bucket{le="0.001"} 99
claim_seconds_bucket{le="+Inf"} 100
claim_seconds_sum 0.5
claim_seconds_count 100
`

const empty = `# TYPE claim_seconds histogram
claim_seconds_bucket{le="0.0005"} 0
claim_seconds_bucket{le="0.001"} 0
claim_seconds_bucket{le="+Inf"} 0
claim_seconds_sum 0
claim_seconds_count 0
`

// between is a histogram between two looks.
func between(t *testing.T, name string, texts ...string) (histogram, error) {
	t.Helper()
	var c cost
	p := api(t, texts...)
	for _, m := range []*map[string]*dto.MetricFamily{&c.before, &c.after} {
		var err error
		if *m, err = rig.Metrics(t.Context(), p.Admin); err != nil {
			return histogram{}, err
		}
	}
	return c.histogram(name)
}

func TestHistogramQuantileIsTheLeastBound(t *testing.T) {
	t.Parallel()
	h, err := between(t, "claim_seconds", empty, scraped)
	if err != nil {
		t.Fatal(err)
	}
	for q, want := range map[float64]float64{
		.05: .0005, .1: .0005, .11: .001, .99: .001, .991: math.Inf(1), 1: math.Inf(1),
	} {
		if got := h.atMost(q); got != want {
			t.Errorf("the quantile %g is at most %g, want %g", q, got, want)
		}
	}
	if h.count() != 100 || h.mean() != .005 {
		t.Errorf("count %g, mean %g", h.count(), h.mean())
	}

	later := strings.NewReplacer(" 99\n", " 102\n", " 100\n", " 104\n", " 0.5\n", " 0.7\n").Replace(scraped)
	if h, err = between(t, "claim_seconds", scraped, later); err != nil {
		t.Fatal(err)
	}
	if h.count() != 4 || h.atMost(.75) != .001 || !math.IsInf(h.atMost(.76), 1) || math.Abs(h.mean()-.05) > 1e-9 {
		t.Errorf("what came after: %+v", h)
	}
	h, err = between(t, "claim_seconds", scraped, scraped)
	if q := h.atMost(.99); err != nil || !math.IsNaN(q) {
		t.Errorf("the quantile of nothing is %g, %v", q, err)
	}
}

func TestMissingHistogramIsAnError(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing": "", "another": scraped, "no histogram": "x 7\n",
		"no bound": "# TYPE x histogram\nx_bucket{le=\"a\"} 1\n",
		"no count": "# TYPE x histogram\nx_bucket{le=\"+Inf\"} many\n",
		"labels":   "# TYPE x histogram\nx_bucket{le=\"1\",a=\"b\"} 1\nx_bucket{le=\"1\",a=\"c\"} 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if h, err := between(t, "x", text, text); err == nil {
				t.Errorf("no error: %v", h)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}, {[]float64{math.NaN(), 5, 1, 3}, 3},
	} {
		if got := median((figures{"x": c.values}).values(row{name: "x"}, "")); got != c.want {
			t.Errorf("median of %v is %g, want %g", c.values, got, c.want)
		}
	}
	for _, values := range [][]float64{nil, {math.NaN()}} {
		if got := median((figures{"x": values}).values(row{name: "x"}, "")); !math.IsNaN(got) {
			t.Errorf("median of %v is %g", values, got)
		}
	}
}

// A ratio of medians would be another number.
func TestRatioIsOfTheSameRound(t *testing.T) {
	t.Parallel()
	f := figures{}
	for _, round := range [][2]float64{{10, 1}, {1, 2}, {6, 3}} {
		f.add("a", measured{"per_s": round[0]}, "_few")
		f.add("b", measured{"per_s": round[1]}, "_few")
	}
	got := f.values(row{name: "ratio", of: "a_per_s / b_per_s"}, "_few")
	if diff := cmp.Diff([]float64{10, .5, 2}, got); diff != "" {
		t.Error(diff)
	}
}

// members returns the JSON of a table.
func members(t *testing.T, f figures, table []row) (got map[string]any) {
	t.Helper()
	object := map[string]any{}
	f.show(io.Discard, table, "", object)
	var out bytes.Buffer
	writeJSON(&out, object)
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestJSONHasEveryFigure(t *testing.T) {
	t.Parallel()
	got := members(t, figures{
		"group_per_s": {4, 4.123456, 5}, "single_per_s": {1, 1, 1}, "peak_rss_mib": {123.456},
		"open_replay_claim_p99_ms": {math.Inf(1)},
	}, intakeTable)
	want := map[string]any{"ratio": 4.12, "group_per_s": 4.12, "single_per_s": 1.0, "rss_mib": 123.0}
	for _, r := range intakeTable {
		if _, set := want[r.name]; !set {
			want[r.name] = nil
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A row whose figure is never measured would be left out without a word.
func TestEveryRowIsMeasured(t *testing.T) {
	t.Parallel()
	f := figures{}
	load := measured{}
	for _, what := range []string{
		"per_s", "p50_ms", "p99_ms", "api_us", "postgres_us", "cpu_us", "generator_us", "wal_bytes",
		"claim_p50_ms", "claim_p99_ms", "batch",
	} {
		load[what] = 1
	}
	for _, s := range scenarios {
		for _, st := range s.stretches {
			f.add(st.name, load, "")
		}
	}
	for _, name := range []string{"stored", "stored_none", "stored_payments", "stored_payments_none"} {
		f.add(name, load, "")
	}
	f.add("peak", measured{"rss_mib": 1}, "")
	drained := measured{}
	for _, what := range []string{"per_s", "relay_cpu_ms", "postgres_cpu_ms", "cpu_ms", "wal_bytes", "rss_mib", "dead_rows"} {
		drained[what] = 1
	}
	for _, c := range []contender{ours, tutorial, exactlyOnce} {
		f.add(c.name, drained, "")
	}
	f.add(ours.name, drained, "_backlog")
	for _, p := range paces {
		f.add(p.name, measured{"p50_ms": 1, "p99_ms": 1, "written_per_s": 1}, "")
	}
	f.add("idle", measured{"cpu": 1, "postgres_cpu": 1, "wal_bytes": 1}, "")
	f.add("tutorial", measured{"duplicates": 1, "out_of_order": 1}, "")
	f.add("charges", measured{
		"per_s": 1, "api_us": 1, "worker_us": 1, "postgres_us": 1, "psp_us": 1, "generator_us": 1, "wal_bytes": 1,
		"claim": 1, "batch": 1,
	}, "")
	f.add("steady", measured{
		"wait_p50_ms": 1, "wait_p99_ms": 1, "claim_wait_p50_ms": 1, "claim_wait_p99_ms": 1,
	}, "")
	for _, st := range pspTurns {
		f.add(st.name, load, "")
		f.add(st.name, measured{"waiting": 1}, "")
	}

	for _, r := range slices.Concat(intakeTable, pspTable, drainTable, relayTable) {
		if len(f.values(r, "")) == 0 {
			t.Errorf("%s: nothing measures %q", r.name, r.of)
		}
	}
}

func TestSpentIsTheTimeOfEachProcess(t *testing.T) {
	t.Parallel()
	postgres, err := embedded.StartPostgres(t.Context(), embedded.PostgresOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Stop(context.Background())
	b := &bench{postgres: postgres}
	if b.admin, err = rig.Connect(t.Context(), b.owner("postgres")); err != nil {
		t.Fatal(err)
	}
	defer b.admin.Close(context.Background())

	dir := t.TempDir()
	script := "#!/bin/sh\necho '{\"msg\":\"busy started\"}' >&2\nwhile :; do :; done\n"
	if err := os.WriteFile(filepath.Join(dir, "busy"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	busy, err := process.Start(t.Context(), dir, "busy")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Kill()

	// The program burns what Postgres does not.
	work := func(sql string) cost {
		c, err := b.cost(t.Context(), busy, func() error {
			return rig.Execute(t.Context(), b.owner("postgres"), sql)
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := work(`SELECT pg_sleep(3)`)
	for range 2 { // the machine may sleep as well
		if c.program < .1 {
			c = work(`SELECT pg_sleep(3)`)
		}
	}
	if c.program < .1 || c.postgres > .3 || c.seconds < 3 || c.peak <= 0 || c.wal > 1e6 {
		t.Errorf("asleep: %+v", c)
	}
	const busyPostgres = `CREATE TABLE t AS SELECT md5(n::text) FROM generate_series(1, 300000) n`
	if c := work(busyPostgres); c.postgres < .1 || c.wal < 1e6 { // by a session that has ended
		t.Errorf("at work: %+v", c)
	}

	// Sessions end while their time is read. None is counted twice, or lost.
	sessions := make(chan error, 1)
	go func() {
		for range 30 {
			const brief = `SELECT count(md5(n::text)) FROM generate_series(1, 100000) n`
			if err := rig.Execute(t.Context(), b.owner("postgres"), brief); err != nil {
				sessions <- err
				return
			}
		}
		sessions <- nil
	}()
	for most := 0.0; ; {
		c, err := b.spent(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.postgres < most-.005 { // half a tick
			t.Fatalf("Postgres had taken %v s, and now %v s", most, c.postgres)
		}
		most = c.postgres

		select {
		case err := <-sessions:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

func TestWrongFlagOfIntakeIsOneLine(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                           "expected intake, expiry, psp, relay or hour",
		"outtake":                    `"outtake" is no benchmark`,
		"intake -fast":               "flag provided but not defined: -fast",
		"intake now":                 `unknown argument "now"`,
		"intake -connections 0":      "for flag -connections: must be 1 to 1000",
		"intake -connections 1001":   "for flag -connections: must be 1 to 1000",
		"intake -connections many":   "invalid value",
		"intake -accounts 1":         "for flag -accounts: must be 2 to 10000",
		"intake -accounts 10001":     "for flag -accounts: must be 2 to 10000",
		"intake -rate -5":            "for flag -rate: must be 0 to 100000",
		"intake -rate NaN":           "for flag -rate: must be 0 to 100000",
		"intake -seconds 0":          "for flag -seconds: must be 1 to 600",
		"intake -rounds 0":           "for flag -rounds: must be 1 to 50",
		"intake -stored -1":          "for flag -stored: must be 0 to 100000000",
		"intake -stored 999999999":   "for flag -stored: must be 0 to 100000000",
		"intake -api LOG_LEVEL=warn": "the benchmark sets it itself",
		"intake -api committers=4":   "NAME=VALUE",
		"intake -smoke -rounds 9":    "-smoke decides about -rounds",
		"hour -smoke":                "flag provided but not defined: -smoke",
		"hour -minutes 0":            "for flag -minutes: must be 1 to 1440",
		"hour -stored 999":           "-stored must be -accounts or more",
		"hour -postgres autovacuum":  "expected NAME=VALUE",
		"psp -smoke":                 "flag provided but not defined: -smoke",
		"psp -charges 99":            "for flag -charges: must be 100 to 1000000",
		"psp -latency 50":            "invalid value",
		"psp -worker PSP_URL=http:":  "the benchmark sets it itself",
	} {
		var stdout, stderr bytes.Buffer
		code := rig.Run(t.Context(), "bench", strings.Fields(args), &stdout, &stderr, command)
		said := stderr.String()
		if code != 1 || !strings.Contains(said, want) || strings.Count(said, "\n") != 1 || strings.Contains(said, "hunter2") || stdout.Len() > 0 {
			t.Errorf("bench %s: exit code %d, %q, want %q", args, code, said, want)
		}
	}
}

func TestHelpOfIntakeHasExamples(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-h", "--help", "intake -h", "psp -h", "hour -h"} {
		var stdout, stderr bytes.Buffer
		if code := rig.Run(t.Context(), "bench", strings.Fields(args), &stdout, &stderr, command); code != 0 || !strings.Contains(stdout.String(), "go run ./tools/bench intake") || stderr.Len() > 0 {
			t.Errorf("bench %s: exit code %d\n%s%s", args, code, &stdout, &stderr)
		}
	}
}

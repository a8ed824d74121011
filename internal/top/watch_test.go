package top_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/top"
)

func TestLookTellsWhyAProgramIsGone(t *testing.T) {
	t.Parallel()
	running := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			t.Errorf("it was asked for %s", r.URL.Path)
		}
		text, err := os.ReadFile("testdata/api-1.txt")
		if err != nil {
			t.Error(err)
		}
		w.Write(text)
	}))
	defer running.Close()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("<html>{}</html>"))
	}))
	defer page.Close()
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	gone := httptest.NewServer(nil)
	gone.Close()

	want := map[string]string{
		running.URL: "", page.URL: "it does not answer with metrics",
		missing.URL: "it answered 404 Not Found", gone.URL: "connection refused",
	}
	var all []top.Target
	for url := range want {
		all = append(all, top.Target{Program: top.API, Address: strings.TrimPrefix(url, "http://")})
	}

	w := top.NewWatch(all)
	w.Look(t.Context())
	f := w.Figures()
	for _, i := range f.Instances {
		if i.Problem != want["http://"+i.Address] {
			t.Errorf("%s: %q, want %q", i.Address, i.Problem, want["http://"+i.Address])
		}
	}
	if f.API.New != 992 || f.API.Requests.Known() {
		t.Errorf("after one look: %+v", f.API)
	}
}

// TestFiguresAreJSON: what is not known is null, which JSON has no number for.
func TestFiguresAreJSON(t *testing.T) {
	t.Parallel()
	w := recorded(t, nil)
	w.Lost(target(top.API), begun.Add(10*time.Second), os.ErrClosed)
	text, err := json.Marshal(w.Figures())
	if err != nil {
		t.Fatal(err)
	}
	var read top.Figures
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if read.API.Queue.Known() || read.Outbox.DaysAhead != 7 || !strings.Contains(string(text), `"queue_requests":null`) {
		t.Errorf("%s", text)
	}
}

func TestTrendHasGapsAndHighestP99(t *testing.T) {
	t.Parallel()
	trend := top.NewTrend(time.Second)
	add := func(second int, rate, p99 top.Figure) {
		f := top.Figures{At: begun.Add(time.Duration(second) * time.Second)}
		f.API.Outcomes, f.API.Latency.P99 = map[string]top.Figure{"new": rate}, p99
		trend.Add(f)
	}
	add(0, top.Unknown, top.Unknown)
	add(1, 10, .5)
	add(4, 12, .1)
	add(15, 20, .2)
	add(86_400*365, 30, .3) // the machine slept

	rates, p99s := trend.Rates(10), trend.P99s(10)
	want := []top.Figure{12, top.Unknown, top.Unknown, 20, 30}
	if len(rates) != len(want) {
		t.Fatalf("rates %v", rates)
	}
	for i := range want {
		if rates[i] != want[i] && (rates[i].Known() || want[i].Known()) {
			t.Errorf("rates %v, want %v", rates, want)
		}
	}
	near(t, "the first p99", p99s[0], .5)
	near(t, "the newest of three", trend.Rates(3)[2], 30)
}

func TestFiguresAsText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{top.Unknown.Count(), "–"}, {top.Unknown.Rate(), "–"}, {top.Unknown.Age(), "–"}, {top.Unknown.Latency(), "–"},
		{top.Figure(0).Count(), "0"}, {top.Figure(1234567).Count(), "1,234,567"}, {top.Figure(999).Count(), "999"},
		{top.Figure(0).Rate(), "0/s"}, {top.Figure(.01).Rate(), "<0.1/s"}, {top.Figure(.25).Rate(), "0.2/s"},
		{top.Figure(9.96).Rate(), "10/s"}, {top.Figure(12345).Rate(), "12,345/s"},
		{top.Figure(.00005).Latency(), "50 µs"}, {top.Figure(.0012).Latency(), "1.2 ms"}, {top.Figure(.00996).Latency(), "10 ms"},
		{top.Figure(.25).Latency(), "250 ms"}, {top.Figure(.9996).Latency(), "1.0 s"}, {top.Figure(90).Latency(), "1m 30s"},
		{top.Figure(0).Age(), "0 s"}, {top.Figure(.04).Age(), "0 s"}, {top.Figure(.05).Age(), "0.1 s"}, {top.Figure(9.96).Age(), "10 s"}, {top.Figure(60).Age(), "1m"},
		{top.Figure(70).Age(), "1m 10s"}, {top.Figure(3599.6).Age(), "1h"}, {top.Figure(86399).Age(), "23h 59m"},
		{top.Figure(200_000).Age(), "2d 7h"}, {top.Figure(1e300).Age(), "11574d 1h"}, {top.Figure(3.26).Mean(), "3.3"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

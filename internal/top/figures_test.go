package top_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/top"
)

// begun is the time of the first recording in testdata. The second came five seconds later.
var begun = time.Date(2026, 11, 22, 14, 45, 0, 0, time.UTC)

func target(program string) top.Target { return top.Target{Program: program, Address: program + ":1"} }

// recorded returns what the demo's programs showed, with changes of the second recording.
func recorded(t *testing.T, changes map[string]func(string) string) *top.Watch {
	t.Helper()
	var all []top.Target
	for _, p := range top.Programs {
		all = append(all, target(p))
	}
	w := top.NewWatch(all)

	for _, p := range top.Programs {
		for i, at := range []time.Time{begun, begun.Add(5 * time.Second)} {
			text, err := os.ReadFile(fmt.Sprintf("testdata/%s-%d.txt", p, i+1))
			if err != nil {
				t.Fatal(err)
			}
			if change := changes[p]; change != nil && i == 1 {
				changed := change(string(text))
				if changed == string(text) {
					t.Fatalf("the recording of %s has nothing to change", p)
				}
				text = []byte(changed)
			}
			if err := w.Keep(target(p), at, strings.NewReader(string(text))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w
}

// with replaces lines of metrics, given as a beginning and the new value.
func with(pairs ...string) func(string) string {
	return func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			for i := 0; i < len(pairs); i += 2 {
				if strings.HasPrefix(line, pairs[i]+" ") {
					line = pairs[i] + " " + pairs[i+1] + "\n"
				}
			}
			lines = append(lines, line)
		}
		return strings.Join(lines, "")
	}
}

func without(name string) func(string) string {
	return func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, name) {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
}

func near(t *testing.T, what string, got top.Figure, want float64) {
	t.Helper()
	if !(math.Abs(float64(got)-want) < 1e-6) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestFiguresOfRecordedPrograms(t *testing.T) {
	t.Parallel()
	f := recorded(t, nil).Figures()
	// By hand, from the texts: the difference of two lines, over five seconds.
	near(t, "new", f.API.Outcomes["new"], 23)
	near(t, "requests", f.API.Requests, 41.6)
	near(t, "failed", f.API.Failed, 0)
	near(t, "new since the start", f.API.New, 1107)
	near(t, "batches", f.API.Batches, 36.8)
	near(t, "events sent", f.Relay.Events, 23.8)
	near(t, "events received", f.Consumer.Events, 24.6)
	near(t, "calls", f.Worker.Calls, 2)
	near(t, "days ahead", f.Outbox.DaysAhead, 7)
	if f.Relay.Leaders != 1 || f.Worker.Breaker != "closed" || f.Outbox.Cursor != top.CursorMoves {
		t.Errorf("leaders %d, breaker %q, cursor %q", f.Relay.Leaders, f.Worker.Breaker, f.Outbox.Cursor)
	}
	if p := f.API.Latency; !(p.P50 > .001 && p.P50 < p.P99 && p.P99 < .5) {
		t.Errorf("latency %v", p)
	}
}

func TestRestartHasNoRates(t *testing.T) {
	t.Parallel()
	const born = "process_start_time_seconds"
	for name, change := range map[string]func(string) string{
		"that counted less": with(born, "1.9e+09", `idempotency_requests_total{outcome="new"}`, "3"),
		"that counted more": with(born, "1.9e+09", `idempotency_requests_total{outcome="new"}`, "3e+06"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := recorded(t, map[string]func(string) string{top.API: change})
			f := w.Figures()
			if f.API.Outcomes["new"].Known() || f.API.Latency.P99.Known() || f.API.Claim.P50.Known() {
				t.Errorf("a process that was read once has rates: %+v", f.API)
			}
			if f.API.New < 3 || !f.API.Queue.Known() {
				t.Errorf("its own values are missing: %+v", f.API)
			}
		})
	}

	t.Run("of which the start is unknown", func(t *testing.T) {
		t.Parallel()
		api := target(top.API)
		w := top.NewWatch([]top.Target{api})
		for i, n := range []string{"1000", "10"} {
			text := "# TYPE idempotency_requests_total counter\nidempotency_requests_total{outcome=\"new\"} " + n + "\n"
			if err := w.Keep(api, begun.Add(time.Duration(i)*5*time.Second), strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		}
		near(t, "new", w.Figures().API.Outcomes["new"], 2)
	})
}

func TestAProgramGoneIsNotZero(t *testing.T) {
	t.Parallel()
	w := recorded(t, nil)
	w.Lost(target(top.Relay), begun.Add(10*time.Second), errors.New("connection refused"))
	f := w.Figures()
	for name, figure := range map[string]top.Figure{
		"events": f.Relay.Events, "waiting": f.Outbox.Waiting, "oldest": f.Outbox.Oldest, "days": f.Outbox.DaysAhead,
	} {
		if figure.Known() {
			t.Errorf("%s is %v", name, figure)
		}
	}
	if f.Outbox.Cursor != top.CursorUnknown || f.Relay.Leaders != 0 {
		t.Errorf("cursor %q, leaders %d", f.Outbox.Cursor, f.Relay.Leaders)
	}
	if len(f.Wrong) == 0 || !strings.Contains(f.Wrong[0].Text, "relay at relay:1 cannot be reached: connection refused") {
		t.Errorf("wrong: %v", f.Wrong)
	}

	// Back again, with the same process: rates over the time it was away.
	text, err := os.ReadFile("testdata/relay-2.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Keep(target(top.Relay), begun.Add(15*time.Second), strings.NewReader(string(text))); err != nil {
		t.Fatal(err)
	}
	near(t, "events", w.Figures().Relay.Events, 0)
}

// TestInstancesAreAddedUpOrNot: two relays count their own events and measure one outbox.
func TestInstancesAreAddedUpOrNot(t *testing.T) {
	t.Parallel()
	one, two := top.Target{Program: top.Relay, Address: "a:1"}, top.Target{Program: top.Relay, Address: "b:1"}
	w := top.NewWatch([]top.Target{one, two})
	for i := range 2 {
		for _, r := range []top.Target{one, two} {
			text := fmt.Sprintf("# TYPE relay_events_published_total counter\nrelay_events_published_total %d\n"+
				"# TYPE outbox_backlog_events gauge\noutbox_backlog_events 7\n# TYPE relay_leader gauge\nrelay_leader %d\n",
				100+50*i, map[string]int{"a:1": 0, "b:1": 1}[r.Address])
			if err := w.Keep(r, begun.Add(time.Duration(i)*5*time.Second), strings.NewReader(text)); err != nil {
				t.Fatal(err)
			}
		}
	}

	f := w.Figures()
	near(t, "events", f.Relay.Events, 20)
	near(t, "waiting", f.Outbox.Waiting, 7)
	if f.Relay.Leaders != 1 || f.Relay.StandBy != 1 || f.Instances[0].Leads || !f.Instances[1].Leads {
		t.Errorf("%+v %+v", f.Relay, f.Instances)
	}
}

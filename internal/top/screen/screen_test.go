package screen_test

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/top"
	"github.com/oncepay/oncepay/internal/top/screen"
)

var update = flag.Bool("update", false, "write the screens in testdata")

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// normal is a chain in good order, under some load.
func normal() top.Figures {
	return top.Figures{
		At: noon,
		Instances: []top.Instance{
			{Program: top.API, Address: "127.0.0.1:9090", Uptime: 7400},
			{Program: top.Relay, Address: "127.0.0.1:9091", Uptime: 7400, Leads: true},
			{Program: top.Relay, Address: "127.0.0.1:9191", Uptime: 62},
			{Program: top.Consumer, Address: "127.0.0.1:9092", Uptime: 7401},
			{Program: top.Worker, Address: "127.0.0.1:9093", Uptime: 7401},
			{Program: top.Worker, Address: "127.0.0.1:9193", Uptime: 7401},
		},
		API: top.APIFigures{
			Requests: 1284, Latency: top.Latency{P50: .0012, P99: .0134}, Failed: 0,
			Outcomes: map[string]top.Figure{"new": 1002, "replay": 201, "mismatch": .2, "in_progress": 2.6, "busy": 0, "invalid": 0},
			New:      7_214_400, Batches: 312, BatchSize: 4.1,
			Commit: top.Latency{P50: .0021, P99: .0098}, Claim: top.Latency{P50: .0004, P99: .00092}, Queue: 3,
		},
		Outbox: top.OutboxFigures{Waiting: 12, Oldest: .2, Cursor: top.CursorMoves, Writer: 0, DaysAhead: 7},
		Relay: top.RelayFigures{
			Leaders: 1, StandBy: 1, Events: 1010, BatchSize: 18.2, Acknowledge: top.Latency{P50: .02, P99: .081},
			Publish: top.Latency{P50: .004, P99: .0102},
		},
		Consumer: top.ConsumerFigures{Events: 1008, Latency: top.Latency{P50: .006, P99: .02}, Lag: 14},
		Worker: top.WorkerFigures{
			Calls: 24, Latency: top.Latency{P50: .12, P99: .48}, Breaker: "closed", InFlight: 3,
			Pending: 2, Oldest: .4, Expired: 1.3, Webhooks: 98,
		},
		Wrong: []top.Wrong{},
	}
}

// faults is a chain of which much is wrong at once.
func faults() top.Figures {
	f := normal()
	f.Instances[2].Leads, f.Instances[1].Leads = false, false
	f.Instances[5].Problem = "connection refused"
	f.API.Failed, f.API.Queue = 84, 990
	f.Outbox = top.OutboxFigures{Waiting: 1_204_331, Oldest: 4210, Cursor: top.CursorStands, Writer: 3725, DaysAhead: 1, DeadLetters: 2, Parked: 1}
	f.Relay = top.RelayFigures{StandBy: 2, Errors: 1.2, BatchSize: top.Unknown,
		Acknowledge: top.Latency{P50: top.Unknown, P99: top.Unknown}, Publish: top.Latency{P50: top.Unknown, P99: top.Unknown}}
	f.Consumer.DeadLetters, f.Consumer.Parked = 20, 7
	f.Worker.Breaker, f.Worker.Operator, f.Worker.Overdue = "open", 3, 95
	f.Wrong = []top.Wrong{
		{Text: "worker at 127.0.0.1:9193 cannot be reached: connection refused", Read: "A program is gone"},
		{Text: "the API answers 84/s with 5xx", Read: "Requests fail"},
		{Text: "an event has waited in the outbox for 1h 10m", Read: "Events do not leave"},
		{Text: "no relay leads, and events wait", Read: "Events do not leave"},
		{Text: "topic oncepay.\x1b[2Jpayments is missing, forbidden, or has other partitions", Read: "A topic is missing or forbidden"},
		{Text: "a transaction that has written has been open for 1h 2m", Read: "A transaction stays open"},
		{Text: "20 events cannot be processed: consumer dead-letters list", Read: "Dead letters"},
		{Text: "the breaker is open: ten calls of the PSP in a row have failed", Read: "Operations at the PSP"},
	}
	return f
}

// gone is a chain whose relay cannot be reached: what it alone measures is not known.
func gone() top.Figures {
	f := normal()
	f.Instances = append(f.Instances[:2], f.Instances[3:]...)
	f.Instances[1].Leads, f.Instances[1].Problem, f.Instances[1].Uptime = false, "connection refused", top.Unknown
	none := top.Latency{P50: top.Unknown, P99: top.Unknown}
	f.Outbox = top.OutboxFigures{Waiting: top.Unknown, Oldest: top.Unknown, Writer: top.Unknown,
		DeadLetters: top.Unknown, Parked: top.Unknown, DaysAhead: top.Unknown}
	f.Relay = top.RelayFigures{Events: top.Unknown, BatchSize: top.Unknown, Acknowledge: none, Publish: none, Errors: top.Unknown}
	f.Wrong = []top.Wrong{{Text: "relay at 127.0.0.1:9091 cannot be reached: connection refused", Read: "A program is gone"}}
	return f
}

// waves is a trend of the last minutes, with a gap.
func waves() *top.Trend {
	trend := top.NewTrend(2 * time.Second)
	for i := range 200 {
		f := normal()
		f.At = noon.Add(time.Duration(i-199) * 5 * time.Second)
		f.API.Outcomes["new"] = top.Figure(500 + 50*(i%11))
		f.API.Latency.P99 = top.Figure(.01 + .002*float64(i%7))
		if i > 160 && i < 166 {
			f.API.Outcomes["new"], f.API.Latency.P99 = top.Unknown, top.Unknown
		}
		trend.Add(f)
	}
	return trend
}

func TestScreens(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]screen.View{
		"normal-80x24":  {Figures: normal(), Trend: waves(), Width: 80, Height: 24},
		"normal-120x40": {Figures: normal(), Trend: waves(), Width: 120, Height: 40},
		"normal-once":   {Figures: normal()},
		"gone-80x24":    {Figures: gone(), Trend: waves(), Width: 80, Height: 24},
		"gone-120x40":   {Figures: gone(), Trend: waves(), Width: 120, Height: 40},
		"faults-80x24":  {Figures: faults(), Trend: waves(), Width: 80, Height: 24, Paused: true},
		"faults-120x40": {Figures: faults(), Trend: waves(), Width: 120, Height: 40},
		"faults-once":   {Figures: faults()},
		"first-80x24":   {Figures: top.NewWatch(nil).Figures(), Trend: top.NewTrend(time.Second), Width: 80, Height: 24},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v.Every = 2 * time.Second
			got := screen.Draw(v)
			fits(t, v, got)

			file := "testdata/" + name + ".txt"
			if *update {
				if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got+"\n", "\n")); diff != "" {
				t.Errorf("it is not %s (go test ./internal/top/screen -update):\n%s", file, diff)
			}

			// Colors change nothing but colors.
			v.Colors = true
			if bare := escape.ReplaceAllString(screen.Draw(v), ""); bare != got {
				t.Errorf("without its colors it is\n%s", bare)
			}
		})
	}
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

// fits checks that nothing is outside of the terminal, or moves its cursor.
func fits(t *testing.T, v screen.View, text string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	if v.Height > 0 && len(lines) != v.Height {
		t.Errorf("%d lines of %d", len(lines), v.Height)
	}
	for _, l := range lines {
		if v.Height > 0 && utf8.RuneCountInString(l) > v.Width || strings.ContainsRune(l, '\x1b') {
			t.Errorf("it does not fit: %q", l)
		}
	}
}

// TestAnySizeIsDrawn: a window that is too small shows a part, and none panics.
func TestAnySizeIsDrawn(t *testing.T) {
	t.Parallel()
	trend := waves()
	for width := 1; width < 220; width += 13 {
		for height := 1; height < 70; height += 5 {
			v := screen.View{Figures: faults(), Trend: trend, Every: time.Second, Width: width, Height: height}
			if lines := strings.Count(screen.Draw(v), "\n") + 1; lines != height {
				t.Fatalf("%d×%d has %d lines", width, height, lines)
			}
			if lines := strings.Count(screen.Help(width, height, true), "\n") + 1; lines > height {
				t.Fatalf("help in %d×%d has %d lines", width, height, lines)
			}
		}
	}
}

func TestHelpFits(t *testing.T) {
	t.Parallel()
	help := screen.Help(screen.SmallestWidth, screen.SmallestHeight, false)
	fits(t, screen.View{Width: screen.SmallestWidth}, help)
	if strings.Contains(help, "…") || !strings.Contains(help, "q quit") {
		t.Errorf("it is cut off:\n%s", help)
	}
}

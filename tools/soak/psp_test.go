package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/tools/rig"
)

// TestStorm is soak psp, as short as its faults allow.
func TestStorm(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := storm(t.Context(), pspOptions{payments: 600, rate: 50, slowFor: 3 * time.Second}, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if !strings.Contains(out.String(), "none was charged twice") {
		t.Error(out.String())
	}
}

func goodStorm() (*storming, invariant.Report, fakepsp.Totals) {
	s := &storming{kills: map[string]int{"workers": 2, "fakepsps": 1}, cuts: 1, instances: map[string]*instance{}}
	s.load.acknowledged.Store(7)
	totals := fakepsp.Totals{Injected: map[string]int64{
		"replies_lost": 1, "errors_before": 1, "errors_after": 1, "slow_calls": 1, "webhooks_doubled": 1,
	}}
	return s, invariant.Report{ByCard: 7, Lines: []invariant.Line{{Name: invariant.ChargedTwice, Of: 7}}}, totals
}

func TestStormObjections(t *testing.T) {
	t.Parallel()
	s, r, totals := goodStorm()
	if err := s.objections(r, totals); err != nil {
		t.Errorf("a good run: %v", err)
	}
	for want, spoil := range map[string]func(*storming, *invariant.Report, *fakepsp.Totals){
		"not clean":                    func(_ *storming, r *invariant.Report, _ *fakepsp.Totals) { r.Lines[0].Wrong = 1 },
		"looked at nothing":            func(_ *storming, r *invariant.Report, _ *fakepsp.Totals) { r.Lines[0].Of = 0 },
		"executed 1 operations twice":  func(_ *storming, _ *invariant.Report, p *fakepsp.Totals) { p.OperationsTwice = 1 },
		"7 payments were acknowledged": func(_ *storming, r *invariant.Report, _ *fakepsp.Totals) { r.ByCard = 6 },
		"the kills were map":           func(s *storming, _ *invariant.Report, _ *fakepsp.Totals) { s.kills["fakepsps"] = 0 },
		"no connection was cut":        func(s *storming, _ *invariant.Report, _ *fakepsp.Totals) { s.cuts = 0 },
		"there were no replies_lost":   func(_ *storming, _ *invariant.Report, p *fakepsp.Totals) { p.Injected["replies_lost"] = 0 },
		"1 times worker-1 ended by itself": func(s *storming, _ *invariant.Report, _ *fakepsp.Totals) {
			s.instances["worker-1"] = &instance{ended: []string{"panic"}}
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			s, r, totals := goodStorm()
			spoil(s, &r, &totals)
			if err := s.objections(r, totals); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStormWrongFlagIsOneLine(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"psp", "-colour"}, {"psp", "-payments", "1"}, {"psp", "now"}} {
		var stdout, stderr bytes.Buffer
		code := rig.Run(t.Context(), "soak", args, &stdout, &stderr, command)
		if code != 1 || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("soak %v: exit code %d, %q, %q", args, code, stderr.String(), stdout.String())
		}
	}
}

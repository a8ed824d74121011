package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/tools/rig"
)

// twoMinutes are three looks: 100 payments in the first minute, 200 in the second.
func twoMinutes() []look {
	began := time.Now()
	looks := []look{
		{at: began, wal: 1e6, images: 10, checkpoints: 3, api: 1, postgres: 2, transactions: 50},
		{at: began.Add(time.Minute), wal: 1.5e6, images: 60, checkpoints: 4, api: 2, postgres: 4, transactions: 110},
		{at: began.Add(2 * time.Minute), wal: 2.5e6, images: 60, checkpoints: 4, api: 3, postgres: 6, transactions: 110},
	}
	for i, n := range []int{100, 200} {
		looks[i].latencies = rig.NewLatencies()
		for range n {
			looks[i].latencies.Record(time.Duration(i+1) * 10 * time.Millisecond)
		}
	}
	looks[1].frozen = []string{"payments"}
	looks[0].tables = []tableLook{{Name: "accounts", Heap: 1e6, Updated: 10, Hot: 10, Vacuums: 1}}
	looks[1].tables = []tableLook{{Name: "accounts", Heap: 1e6, Updated: 10, Hot: 10, Vacuums: 1}}
	looks[2].tables = []tableLook{{Name: "accounts", Heap: 3e6, Updated: 110, Hot: 60, Vacuums: 2, Dead: 7}}
	return looks
}

func TestMinuteIsWhatLiesBetweenLooks(t *testing.T) {
	t.Parallel()
	got := minutesOf(twoMinutes())
	if len(got) != 2 {
		t.Fatalf("%d minutes", len(got))
	}
	for what, is := range map[string][2]float64{
		"payments/s of the first": {got[0].PerS, 100. / 60}, "p99": {got[1].P99, 20},
		"log of the first": {got[0].WAL, 5000}, "log of the second": {got[1].WAL, 5000},
		"full pages": {got[0].Images, .5}, "API": {got[0].API, 1e4}, "Postgres": {got[1].Postgres, 1e4},
		"checkpoints": {got[0].Checkpoints, 1}, "vacuums": {got[1].Vacuums, 1}, "transactions": {got[0].Transactions, 1},
	} {
		if math.Abs(is[0]-is[1]) > .02*is[1] {
			t.Errorf("%s: %g, want %g", what, is[0], is[1])
		}
	}

	var out bytes.Buffer
	showMinutes(&out, got)
	showTables(&out, twoMinutes()[0], twoMinutes()[2])
	for _, want := range []string{"1–1", "2–2", "all", "payments", "accounts", "50.0", "7"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &out)
		}
	}
}

func TestPlotIsWellFormed(t *testing.T) {
	t.Parallel()
	drawn := string(plot(minutesOf(twoMinutes())))
	for d := xml.NewDecoder(strings.NewReader(drawn)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, drawn)
		}
	}
	if strings.Contains(drawn, "NaN") || strings.Count(drawn, `class="frozen"`) != 2 || strings.Count(drawn, "<polyline") != 3 {
		t.Error(drawn)
	}
}

// A stall must not cost the other minutes their figures.
func TestMinuteWithoutAnswersIsDrawn(t *testing.T) {
	t.Parallel()
	looks := twoMinutes()
	looks[1].latencies = rig.NewLatencies()
	drawn := string(plot(minutesOf(looks)))
	if strings.Contains(drawn, "Inf") || strings.Contains(drawn, "NaN") {
		t.Error(drawn)
	}
}

func TestStepsAreRound(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]float64{0: 1, .3: .5, 1: 1, 1.1: 2, 4: 5, 7: 10, 120: 200} {
		if got := niceStep(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("a step for %g: %g, want %g", v, got, want)
		}
	}
}

package top

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// span is two readings of the same process. Without an earlier one, as of a program that was just
// started again, every rate and quantile is NaN.
type span struct{ from, to reading }

// born tells processes apart: counters begin again at 0 with each.
const born = "process_start_time_seconds"

// sameProcess reports whether two readings are of one process.
func sameProcess(a, b reading) bool {
	x, y := a.value(born), b.value(born)
	return a.err == nil && b.err == nil && (x == y || math.IsNaN(x) && math.IsNaN(y))
}

func (s span) seconds() float64 {
	if s.from.families == nil {
		return math.NaN()
	}
	return s.to.at.Sub(s.from.at).Seconds()
}

// increase returns by how much the counters of this name and with these labels grew, or how much
// histograms observed. One that does
// not exist yet is at 0. One that fell began again: all it has is new, as Prometheus sees it.
func (s span) increase(name string, labels ...string) float64 {
	if s.from.families == nil {
		return math.NaN()
	}

	before := map[string]float64{}
	for _, m := range s.from.series(name, labels...) {
		before[identity(m)] = number(m)
	}

	grown := 0.0
	for _, m := range s.to.series(name, labels...) {
		grown += since(before[identity(m)], number(m))
	}
	return grown
}

func since(before, now float64) float64 {
	if now < before {
		return now
	}
	return now - before
}

// observed returns the observations that the histograms of this name made between the readings, all
// series together.
func (s span) observed(name string, labels ...string) histogram {
	if s.from.families == nil {
		return histogram{}
	}

	before := map[string]*dto.Histogram{}
	for _, m := range s.from.series(name, labels...) {
		before[identity(m)] = m.GetHistogram()
	}

	var all histogram
	for _, m := range s.to.series(name, labels...) {
		all = all.plus(newHistogram(m.GetHistogram()).minus(newHistogram(before[identity(m)])))
	}
	return all
}

// identity is a series' labels, in one order.
func identity(m *dto.Metric) string {
	var pairs []string
	for _, l := range m.GetLabel() {
		pairs = append(pairs, l.GetName()+"\xff"+l.GetValue())
	}
	slices.Sort(pairs)

	text := ""
	for _, p := range pairs {
		text += p + "\xff"
	}
	return text
}

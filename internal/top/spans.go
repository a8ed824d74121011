package top

import (
	"maps"
	"math"
	"slices"
	"time"
)

// spans are those of all instances of a program that answered the last time.
type spans []span

func (w *Watch) spans(program string, length time.Duration) (all spans) {
	for _, t := range w.targets {
		if s := w.span(t, length); t.Program == program && s.to.families != nil {
			all = append(all, s)
		}
	}
	return all
}

// rate returns the sum of what the instances count in a second. It leaves out those that were read once only, and is NaN if that is all.
func (s spans) rate(name string, labels ...string) Figure {
	sum := Unknown
	for _, one := range s {
		sum = plus(sum, one.increase(name, labels...)/one.seconds())
	}
	return sum
}

// grown returns by how much counters grew in all.
func (s spans) grown(name string, labels ...string) Figure {
	sum := Unknown
	for _, one := range s {
		sum = plus(sum, one.increase(name, labels...))
	}
	return sum
}

// histogram returns what all instances observed.
func (s spans) histogram(name string) (all histogram) {
	for _, one := range s {
		all = all.plus(one.observed(name))
	}
	return all
}

// total returns the sum of the instances' last values.
func (s spans) total(name string, labels ...string) Figure {
	sum := Unknown
	for _, one := range s {
		sum = plus(sum, one.to.value(name, labels...))
	}
	return sum
}

// highest returns the largest of the last values, of all series: what each instance measures of the
// same database is not to be added up.
func (s spans) highest(name string, labels ...string) Figure {
	return s.extreme(math.Max, name, labels...)
}

func (s spans) lowest(name string, labels ...string) Figure {
	return s.extreme(math.Min, name, labels...)
}

func (s spans) extreme(of func(a, b float64) float64, name string, labels ...string) Figure {
	found := Unknown
	for _, one := range s {
		for _, m := range one.to.series(name, labels...) {
			if v := number(m); found.Known() {
				found = Figure(of(float64(found), v))
			} else {
				found = Figure(v)
			}
		}
	}
	return found
}

// labels returns the values that a label has among all series but those at 0.
func (s spans) labels(name, of string) []string {
	found := map[string]bool{}
	for _, one := range s {
		for _, m := range one.to.series(name) {
			if number(m) != 0 {
				found[label(m, of)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// plus adds what is known.
func plus(sum Figure, more float64) Figure {
	switch {
	case math.IsNaN(more):
		return sum
	case !sum.Known():
		return Figure(more)
	}
	return sum + Figure(more)
}

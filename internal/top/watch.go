package top

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Watch looks at instances again and again, and remembers enough to tell rates.
type Watch struct {
	targets  []Target
	readings map[Target][]reading // oldest first
}

const (
	// window is what rates and quantiles are taken over, or the time between two looks if that is
	// longer: shorter ones make the figures flicker.
	window = 5 * time.Second
	// memory is how far back "within a minute" looks.
	memory = time.Minute
	// patience is how long an instance may take to answer.
	patience = 2 * time.Second
)

// NewWatch returns a Watch of instances that has not looked yet.
func NewWatch(targets []Target) *Watch {
	return &Watch{targets: targets, readings: map[Target][]reading{}}
}

// Look reads all instances at once. It is not for concurrent use, nor beside Figures.
func (w *Watch) Look(ctx context.Context) {
	taken := make([]reading, len(w.targets))

	var all sync.WaitGroup
	for i, t := range w.targets {
		all.Go(func() { taken[i] = read(ctx, t) })
	}
	all.Wait()

	for i, t := range w.targets {
		w.keep(t, taken[i])
	}
}

// keep adds a reading and drops those that are no longer needed.
func (w *Watch) keep(t Target, r reading) {
	kept := append(w.readings[t], r)
	for len(kept) > 2 && r.at.Sub(kept[1].at) >= memory {
		kept = kept[1:]
	}
	w.readings[t] = kept
}

// last returns the newest reading of an instance.
func (w *Watch) last(t Target) reading {
	if all := w.readings[t]; len(all) > 0 {
		return all[len(all)-1]
	}
	return reading{}
}

// span returns the newest reading of an instance, and the newest that is older by at least length;
// without one, the oldest of the same process.
func (w *Watch) span(t Target, length time.Duration) span {
	s := span{to: w.last(t)}
	all := w.readings[t]

	for _, earlier := range slices.Backward(all[:max(len(all)-1, 0)]) {
		if s.from.families != nil && s.seconds() >= length.Seconds() {
			break
		}
		if earlier.err != nil {
			continue
		}
		if !sameProcess(earlier, s.to) {
			break
		}
		s.from = earlier
	}
	return s
}

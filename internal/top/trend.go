package top

import (
	"slices"
	"time"
)

// Trend is how two figures of the API went, in slots of equal length.
type Trend struct {
	slot  time.Duration
	slots []slot // oldest first; the last may still change
}

type slot struct {
	begin time.Time
	rate  Figure // of new requests
	p99   Figure // the highest of the slot
}

const (
	slotLength = 5 * time.Second
	maxSlots   = 400 // more than the columns of a terminal
)

// NewTrend returns a trend of figures that come at this interval.
func NewTrend(every time.Duration) *Trend { return &Trend{slot: max(every, slotLength)} }

// Add takes the figures into their slot.
func (t *Trend) Add(f Figures) {
	begin := f.At.Truncate(t.slot)

	// Slots without figures, as while the terminal was suspended, stay empty.
	for n := len(t.slots); n == 0 || t.slots[n-1].begin.Before(begin); n = len(t.slots) {
		next := begin
		if n > 0 && begin.Sub(t.slots[n-1].begin) < maxSlots*t.slot {
			next = t.slots[n-1].begin.Add(t.slot)
		}
		t.slots = append(t.slots, slot{next, Unknown, Unknown})
	}
	t.slots = t.slots[max(0, len(t.slots)-maxSlots):]

	last := &t.slots[len(t.slots)-1]
	if rate := f.API.Outcomes["new"]; rate.Known() {
		last.rate = rate
	}
	if p99 := f.API.Latency.P99; !last.p99.Known() || p99 > last.p99 {
		last.p99 = p99
	}
}

// Clone returns a trend that keeps what this one has now.
func (t *Trend) Clone() *Trend { return &Trend{slot: t.slot, slots: slices.Clone(t.slots)} }

// Rates returns the new requests a second of the last n slots, oldest first.
func (t *Trend) Rates(n int) []Figure { return t.last(n, func(s slot) Figure { return s.rate }) }

// P99s returns the API's p99 in the last n slots, oldest first.
func (t *Trend) P99s(n int) []Figure { return t.last(n, func(s slot) Figure { return s.p99 }) }

func (t *Trend) last(n int, figure func(slot) Figure) (all []Figure) {
	for _, s := range t.slots[len(t.slots)-min(max(n, 0), len(t.slots)):] {
		all = append(all, figure(s))
	}
	return all
}

package relay

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := pace{rate: 1000}
	for _, c := range []struct {
		name   string
		passes time.Duration // before
		n      int
		want   time.Duration
	}{
		{"the first batch need not wait", 0, 100, 0},
		{"the second waits for the time of the first", 0, 100, 100 * time.Millisecond},
		{"what it waited counts", 100 * time.Millisecond, 50, 100 * time.Millisecond},
		{"a smaller batch takes less time", 100 * time.Millisecond, 10, 50 * time.Millisecond},
		{"nothing takes none", 50 * time.Millisecond, 0, 10 * time.Millisecond},
		{"after an outage of a minute it begins again", time.Minute, 100, 0},
		{"and does not catch up", 0, 100, 100 * time.Millisecond},
	} {
		now = now.Add(c.passes)
		if got := p.wait(now, c.n); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}

	for rate, want := range map[int]int{1: 1, 9: 1, 1000: 100, 10_000: 1000, 1_000_000: 1000} {
		if got := (&pace{rate: rate}).batch(); got != want {
			t.Errorf("at %d a second a batch has %d events, want %d", rate, got, want)
		}
	}
}

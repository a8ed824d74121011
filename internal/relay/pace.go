package relay

import "time"

// pace spreads events over time, so many a second. After a pause it does not catch up: a broker
// that was away does not need a burst.
type pace struct {
	rate int // events a second
	free time.Time
}

// wait returns how long the next n events must wait, and counts them as sent then.
func (p *pace) wait(now time.Time, n int) time.Duration {
	at := now
	if p.free.After(now) {
		at = p.free
	}

	p.free = at.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	return at.Sub(now)
}

// batch returns how many events go out together: ten batches a second, as long as they fit.
func (p *pace) batch() int { return max(1, min(p.rate/10, maxResend)) }

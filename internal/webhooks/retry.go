package webhooks

import (
	"math/rand/v2"
	"time"
)

// Schedule is how long to wait after each failure of a delivery; the last one is repeated. Short at
// first, for a restart of the receiver, then long, for its weekend.
var Schedule = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour,
}

// GiveUp is for how long an endpoint may fail before it is disabled, and a delivery before it has
// failed: what broke on Friday evening can be repaired on Monday.
const GiveUp = 72 * time.Hour

// pause is the wait after a failure, with jitter: what failed together is not tried again together.
func pause(schedule []time.Duration, tries int) time.Duration {
	d := schedule[min(tries, len(schedule)-1)]
	return d + rand.N(d/5+1) - d/10
}

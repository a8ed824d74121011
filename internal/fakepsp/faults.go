package fakepsp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Faults says how the provider misbehaves. The zero value is a provider that works. Shares are from
// 0 to 1, and of POSTs unless they say otherwise.
type Faults struct {
	// Down makes every call of /v1 fail before it is executed: "unavailable" answers 503, "reset"
	// closes the connection.
	Down string `json:"down"`

	// Latency is added to every call of /v1, before it is executed.
	Latency Duration `json:"latency"`
	// Slow calls take SlowFor longer (zero: 30 s): half of them before they are executed, when their
	// key is in use meanwhile, and half after.
	Slow    float64  `json:"slow"`
	SlowFor Duration `json:"slow_for"`

	// LoseReply closes the connection of calls that were executed or replayed. ErrorBefore answers
	// 500 and executes nothing, ErrorAfter executes and answers 500. Together at most 1.
	LoseReply   float64 `json:"lose_reply"`
	ErrorBefore float64 `json:"error_before"`
	ErrorAfter  float64 `json:"error_after"`

	// Decline is the share of charges that are declined. DeclineAbove declines those of a larger
	// amount, zero none.
	Decline      float64 `json:"decline"`
	DeclineAbove int64   `json:"decline_above"`

	// RateLimit is how many POSTs are let through in a second; the others get 429. Zero: all.
	RateLimit int `json:"rate_limit"`

	// ForgetKeysAfter is how long keys are remembered, zero for as long as the books last. A
	// forgotten key executes again.
	ForgetKeysAfter Duration `json:"forget_keys_after"`

	// Webhooks go out WebhookDelay late. Doubled ones are sent a second time; shuffled ones wait up to
	// 2 s longer, so that others overtake them. Both are shares of charges and refunds.
	WebhookDelay   Duration `json:"webhook_delay"`
	WebhookDouble  float64  `json:"webhook_double"`
	WebhookShuffle float64  `json:"webhook_shuffle"`
}

// The values of Faults.Down.
const (
	Unavailable = "unavailable"
	Reset       = "reset"
)

// slowFor is the default of Faults.SlowFor: longer than any client should wait.
const slowFor = 30 * time.Second

// The names under which faults are counted. Being down is not counted.
const (
	repliesLost      = "replies_lost"
	errorsBefore     = "errors_before"
	errorsAfter      = "errors_after"
	slowCalls        = "slow_calls"
	rateLimited      = "rate_limited"
	webhooksDoubled  = "webhooks_doubled"
	webhooksShuffled = "webhooks_shuffled"
)

var faultNames = []string{
	repliesLost, errorsBefore, errorsAfter, slowCalls, rateLimited, webhooksDoubled, webhooksShuffled,
}

// Duration is a time.Duration that JSON shows as "1.5s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration such as 1.5s", text)
	}
	*d = Duration(v)
	return nil
}

// Check reports the first value that is out of its range.
func (f Faults) Check() error {
	if f.Down != "" && f.Down != Unavailable && f.Down != Reset {
		return errors.New(`down must be "", "unavailable" or "reset"`)
	}

	for _, s := range []struct {
		name  string
		share float64
	}{
		{"slow", f.Slow}, {"lose_reply", f.LoseReply}, {"error_before", f.ErrorBefore},
		{"error_after", f.ErrorAfter}, {"decline", f.Decline},
		{"webhook_double", f.WebhookDouble}, {"webhook_shuffle", f.WebhookShuffle},
	} {
		if !(s.share >= 0 && s.share <= 1) { // NaN is neither
			return fmt.Errorf("%s must be a share from 0 to 1", s.name)
		}
	}

	if f.LoseReply+f.ErrorBefore+f.ErrorAfter > 1 {
		return errors.New("lose_reply, error_before and error_after must be at most 1 together")
	}
	if f.DeclineAbove < 0 || f.RateLimit < 0 {
		return errors.New("decline_above and rate_limit must not be negative")
	}
	if f.Latency < 0 || f.SlowFor < 0 || f.ForgetKeysAfter < 0 || f.WebhookDelay < 0 {
		return errors.New("durations must not be negative")
	}
	return nil
}

// fate is what will happen to one call.
type fate struct {
	before, after time.Duration // pauses
	slow          bool
	errorBefore   bool
	errorAfter    bool
	loseReply     bool
	decline       bool
}

// fate draws what happens to the n-th call. The same seed and n draw the same.
func (f Faults) fate(seed, n uint64) fate {
	dice := rand.New(rand.NewPCG(seed, n))
	drawn := fate{before: time.Duration(f.Latency)}

	// The three exclude each other, so that each has exactly its share.
	switch x := dice.Float64(); {
	case x < f.LoseReply:
		drawn.loseReply = true
	case x < f.LoseReply+f.ErrorBefore:
		drawn.errorBefore = true
	case x < f.LoseReply+f.ErrorBefore+f.ErrorAfter:
		drawn.errorAfter = true
	}

	drawn.decline = dice.Float64() < f.Decline

	switch x := dice.Float64(); {
	case x < f.Slow/2:
		drawn.slow = true
		drawn.before += f.slowFor()
	case x < f.Slow:
		drawn.slow = true
		drawn.after = f.slowFor()
	}
	return drawn
}

func (f Faults) slowFor() time.Duration {
	if f.SlowFor == 0 {
		return slowFor
	}
	return time.Duration(f.SlowFor)
}

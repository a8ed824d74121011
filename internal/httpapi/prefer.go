package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	maxWait  = 5 * time.Second // of the handler's 8 s, so that time is left to do the work itself
	minPause = 25 * time.Millisecond
	maxPause = 100 * time.Millisecond
)

// preferredWait reads wait=N from the Prefer header (RFC 7240): how many seconds the client prefers
// to wait instead of being told that its request, or its payment by card, is in progress. It is capped at maxWait. As the
// RFC says, the first wait counts and malformed ones are ignored.
func preferredWait(h http.Header) (wait time.Duration, asked bool) {
	for _, line := range h.Values("Prefer") {
		for preference := range strings.SplitSeq(line, ",") {
			preference, _, _ = strings.Cut(preference, ";") // wait has no parameters
			name, digits, _ := strings.Cut(preference, "=")
			if strings.EqualFold(strings.TrimSpace(name), "wait") {
				return parseWait(strings.TrimSpace(digits))
			}
		}
	}
	return 0, false
}

func parseWait(digits string) (wait time.Duration, ok bool) {
	if len(digits) > 1 && digits[0] == '"' && digits[len(digits)-1] == '"' {
		digits = digits[1 : len(digits)-1]
	}

	// A number too large is a wish like any other, and capped like any other.
	n, err := strconv.ParseUint(digits, 10, 16)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return maxWait, true
	case err != nil:
		return 0, false
	}
	return min(time.Duration(n)*time.Second, maxWait), true // 16 bits
}

// sleep waits for d and reports whether it did: not if d is not positive, or if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return false
	}

	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

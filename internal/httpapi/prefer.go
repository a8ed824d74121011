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
	maxWait  = 5 * time.Second // within the handler's 8 s, with time left to do the work oneself
	minPause = 25 * time.Millisecond
	maxPause = 100 * time.Millisecond
)

// preferredWait reads wait=N from the Prefer header (RFC 7240): how many seconds the client would rather wait than be told that
// its request is in progress. More than maxWait is maxWait. The first wait counts, and what is malformed is ignored, as the
// RFC has it.
func preferredWait(h http.Header) (wait time.Duration, asked bool) {
	for _, line := range h.Values("Prefer") {
		for preference := range strings.SplitSeq(line, ",") {
			preference, _, _ = strings.Cut(preference, ";") // parameters of the preference: wait has none
			name, digits, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			digits = strings.TrimSpace(digits)
			if len(digits) > 1 && digits[0] == '"' && digits[len(digits)-1] == '"' {
				digits = digits[1 : len(digits)-1]
			}
			n, err := strconv.ParseUint(digits, 10, 16)
			switch {
			case errors.Is(err, strconv.ErrRange):
				return maxWait, true
			case err != nil:
				return 0, false
			}
			return min(time.Duration(n)*time.Second, maxWait), true // 16 bits
		}
	}
	return 0, false
}

// sleep waits for d, and says false when there is nothing to wait for: d is over already, or ctx is.
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

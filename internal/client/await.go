package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// ErrProcessing means that a payment or refund by card had not ended when Await's time was over. It
// will: Await it again.
var ErrProcessing = errors.New("it is still processing")

// longestWait is the longest wait that the service grants to one request.
const longestWait = 5 * time.Second

// Await reads the payment or refund at path until what the PSP makes of it is known, or ctx ends. It
// returns the last answer, with ErrProcessing if that does not say how it ended. A refusal, such as a
// 404, is returned at once.
func (c *Client) Await(ctx context.Context, path string) (Answer, error) {
	var last Answer

	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		a, err := c.getSettled(ctx, path)
		switch {
		case err == nil && a.Status == http.StatusOK && !processing(a):
			return a, nil
		case err == nil && refuses(a):
			return a, nil
		case err == nil:
			last, err = a, fmt.Errorf("answer %d", a.Status)
		}

		// The service has waited, unless it says otherwise or did not answer.
		if a.Status != http.StatusOK || a.Header.Get("Preference-Applied") == "" {
			wait(ctx, max(pause, retryAfter(a)))
		}
		if ctx.Err() != nil {
			return last, fmt.Errorf("%w (last: %w)", ErrProcessing, err)
		}
	}
}

// getSettled asks the service to wait, and to answer before ctx ends.
func (c *Client) getSettled(ctx context.Context, path string) (Answer, error) {
	patience := longestWait
	if end, there := ctx.Deadline(); there {
		patience = min(patience, max(0, time.Until(end)-time.Second/2))
	}

	prefer := "wait=" + strconv.Itoa(int(patience.Seconds()))
	return c.do(ctx, http.MethodGet, path, http.Header{"Prefer": {prefer}}, nil)
}

// processing reports whether an answer shows a payment or refund that the PSP is at work on.
func processing(a Answer) bool {
	var v struct {
		Status         string `json:"status"`
		RefundingMinor int64  `json:"refunding_minor"`
	}
	return json.Unmarshal(a.Body, &v) == nil && (v.Status == "processing" || v.RefundingMinor > 0)
}

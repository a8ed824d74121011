// Package client is how a program should call the service: it repeats a request under its key until
// the outcome is known.
//
// # Promise
//
//   - Post returns the answer that settles the key: the first one or its replay, a success or a
//     refusal. Or it returns ErrUnknown: the payment may have been made, and sending the same key
//     again finds out.
//   - A refusal that is not stored under the key, such as a 401 or a validation error, speaks for
//     its own attempt only. It settles the first attempt of a Post. After an attempt with an
//     unknown outcome it is ErrUnknown: that attempt may have paid before the credential was
//     revoked or a deploy tightened validation.
//   - What anything else says in the service's place is no answer: a proxy's 404 or redirect, or
//     another site's 200.
//   - Between attempts it waits at least as long as Retry-After asks, plus a random time that
//     doubles with each attempt ("full jitter"), so that clients stopped by one outage do not
//     return at once.
//
// # No promise
//
// Keys are the caller's: choose one for each intention and write it down before the first attempt,
// or a crash of your own pays twice. And Post knows of no attempts but its own: a caller that sends
// a key again, after a crash or an ErrUnknown, must take an answer as final only if it is Settled.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Client calls one service with one credential. It is safe for concurrent use.
type Client struct {
	URL   string // base, such as http://127.0.0.1:8080
	Token string
	HTTP  *http.Client // nil: one with a timeout of 30 s an attempt; the service needs 20 s at most

	// Attempted, if set, is called after every attempt of Post, also without an answer.
	Attempted func(Attempt)
}

// Attempt is one request that was sent, and what came back.
type Attempt struct {
	Path, Key string
	IfVersion int64 // of PostIf; zero: any
	Body      []byte
	Answer    Answer // with status 0 if no complete answer came
	Err       error  // why it did not
	Began     time.Time
	Ended     time.Time
}

// Answer is a complete response of the service.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Replayed reports whether it is the stored answer of an earlier attempt.
func (a Answer) Replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

// Settled reports whether the answer settles the key, whatever the outcome of earlier attempts.
// Either it is stored under the key: the service sends Idempotent-Replayed, true or false, in these
// answers only. Or the key belongs to another request, so no attempt under it was this one.
func (a Answer) Settled() bool {
	replayed := a.Header.Get("Idempotent-Replayed")
	stored := (replayed == "true" || replayed == "false") && a.Status >= 200 && a.Status < 500
	if stored {
		return true
	}

	return a.Status == http.StatusUnprocessableEntity && a.Problem().Code == "idempotency-key-reused"
}

// Problem is the body of a refusal, RFC 9457.
type Problem struct {
	Code      string `json:"code"`
	Title     string `json:"title"`
	Detail    string `json:"detail"`
	Retry     string `json:"retry"` // same-key, new-key or never
	RequestID string `json:"request_id"`
}

// Problem returns the body of a refusal; it is empty for any other answer.
func (a Answer) Problem() Problem {
	var p Problem
	if strings.HasPrefix(a.Header.Get("Content-Type"), "application/problem+json") {
		_ = json.Unmarshal(a.Body, &p) // the status is enough where the body is not ours
	}
	return p
}

// ErrUnknown means that no answer settled the key. Its text ends with the key.
var ErrUnknown = errors.New("outcome unknown: repeat it with the same key")

// The wait between attempts is at most firstPause after the first, twice as much after each further
// one, and never more than longestPause, so that a client is back within seconds of the service.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// Post sends body under key until an answer settles it or ctx ends. With ErrUnknown it returns the
// last answer.
func (c *Client) Post(ctx context.Context, path, key string, body any) (Answer, error) {
	return c.PostIf(ctx, path, key, 0, body)
}

// PostIf is Post for a payment that must have this version still; zero: any. Otherwise the answer is
// 412, which settles the key like every refusal that is stored under it. The version belongs to the
// request: a caller that sends the key again sends the same version, not the one of today.
func (c *Client) PostIf(
	ctx context.Context, path, key string, version int64, body any,
) (Answer, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return Answer{}, fmt.Errorf("encode request: %w", err)
	}

	for pause, first := firstPause, true; ; pause, first = min(2*pause, longestPause), false {
		a, err := c.attempt(ctx, path, key, version, encoded)
		refused := err == nil && refuses(a)

		if err == nil && (a.Settled() || refused && first) {
			return a, nil
		}
		if err == nil {
			last := fmt.Sprintf("answer %d %s", a.Status, a.Problem().Code)
			err = errors.New(strings.TrimSpace(last))
		}

		// A further attempt would be refused as well, which says nothing about the earlier ones.
		if refused {
			return a, unknown(key, err)
		}
		if wait(ctx, retryAfter(a)+rand.N(pause)); ctx.Err() != nil {
			return a, unknown(key, err)
		}
	}
}

func unknown(key string, last error) error {
	return fmt.Errorf("%w (last: %w); the key is %s", ErrUnknown, last, key)
}

// refuses reports whether the service refuses the request and would refuse a repeat: the problem's
// retry says so. What a proxy sends in its place has none.
func refuses(a Answer) bool {
	retry := a.Problem().Retry
	return a.Status >= 400 && a.Status < 500 && (retry == "new-key" || retry == "never")
}

// wait returns after d, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func retryAfter(a Answer) time.Duration {
	seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, time.Minute)
}

func (c *Client) attempt(
	ctx context.Context, path, key string, version int64, body []byte,
) (Answer, error) {
	began := time.Now()
	headers := http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}}
	if version != 0 {
		headers.Set("If-Match", strconv.Quote(strconv.FormatInt(version, 10)))
	}
	a, err := c.do(ctx, http.MethodPost, path, headers, body)
	if c.Attempted != nil {
		c.Attempted(Attempt{
			Path: path, Key: key, IfVersion: version, Body: body,
			Answer: a, Err: err, Began: began, Ended: time.Now(),
		})
	}
	return a, err
}

// Get sends one GET. The caller may repeat it.
func (c *Client) Get(ctx context.Context, path string) (Answer, error) {
	return c.do(ctx, http.MethodGet, path, http.Header{}, nil)
}

// Delete sends one DELETE. The caller may repeat it.
func (c *Client) Delete(ctx context.Context, path string) (Answer, error) {
	return c.do(ctx, http.MethodDelete, path, http.Header{}, nil)
}

func (c *Client) do(
	ctx context.Context, method, path string, headers http.Header, body []byte,
) (Answer, error) {
	url := strings.TrimSuffix(c.URL, "/") + path
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("make request: %w", err)
	}

	// With a key and a GetBody, net/http would repeat a POST by itself on a broken connection.
	// Attempted would not be called, and the answer to the repeat would pass for one to a first
	// attempt, which any refusal settles.
	r.GetBody = nil

	r.Header = headers
	r.Header.Set("Authorization", "Bearer "+c.Token)

	send := http.Client{Timeout: 30 * time.Second}
	if c.HTTP != nil {
		send = *c.HTTP
	}
	// Redirects are not followed: most turn a POST into a GET.
	send.CheckRedirect = func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}

	response, err := send.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()

	read, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("read answer: %w", err) // an incomplete answer is none
	}
	return Answer{response.StatusCode, response.Header, read}, nil
}

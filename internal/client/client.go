// Package client is how a program should call the service: it repeats a request under its key until the outcome is known.
//
// # Promise
//
//   - Post returns the answer that settles the key: the first one or its replay, a success or a refusal. Or it returns
//     ErrUnknown: the payment may have been made, and sending the same key again finds out.
//   - A refusal that is not stored under the key, such as 401 or a validation error, speaks for its own attempt only. It
//     settles the first attempt of a Post. After one whose outcome is unknown it is ErrUnknown: that one may have paid
//     before the credential was revoked or a deploy tightened validation.
//   - What somebody else says in the service's place, a proxy's 404 or redirection or another site's 200, is no answer.
//   - Between attempts it waits as long as Retry-After asks, at least, and a random time more that doubles with each attempt
//     ("full jitter"), so that clients whom an outage stopped at the same moment do not come back at the same moment.
//
// # No promise
//
// Keys are the caller's: it must choose one for each intention and write it down before the first attempt, or a crash of
// the caller's own pays twice. And Post knows of no attempts but its own: a caller that sends a key once more, after a crash or
// an ErrUnknown, takes an answer for the last word only if it is Settled.
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
	HTTP  *http.Client // nil: one that gives an attempt 20 s

	// Attempted, when set, is told of every attempt of Post, also of those without an answer.
	Attempted func(Attempt)
}

// Attempt is one request that was sent, and what came back.
type Attempt struct {
	Path, Key string
	Body      []byte
	Answer    Answer // of status 0: none came, or not all of it
	Err       error  // why none came
	Began     time.Time
	Ended     time.Time
}

// Answer is what the service said, all of it.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Replayed reports whether it is the stored answer of an earlier attempt.
func (a Answer) Replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

// Settled reports whether it settles the key, whatever became of earlier attempts. Either it is stored under the key: the
// service says Idempotent-Replayed, true or false, in these answers and in no others. Or the key belongs to another request,
// so none under it was this one.
func (a Answer) Settled() bool {
	replayed := a.Header.Get("Idempotent-Replayed")
	stored := (replayed == "true" || replayed == "false") && a.Status >= 200 && a.Status < 500
	return stored || a.Status == http.StatusUnprocessableEntity && a.Problem().Code == "idempotency-key-reused"
}

// Problem is the body of a refusal, RFC 9457.
type Problem struct {
	Code      string `json:"code"`
	Title     string `json:"title"`
	Detail    string `json:"detail"`
	Retry     string `json:"retry"` // same-key, new-key or never
	RequestID string `json:"request_id"`
}

// Problem reads the body of a refusal; of anything else it is empty.
func (a Answer) Problem() Problem {
	var p Problem
	if strings.HasPrefix(a.Header.Get("Content-Type"), "application/problem+json") {
		_ = json.Unmarshal(a.Body, &p) // the status is enough where the body is not ours
	}
	return p
}

// ErrUnknown says that no answer settled the key. The text ends with the key.
var ErrUnknown = errors.New("outcome unknown: repeat it with the same key")

// Waiting between attempts: at most firstPause after the first, twice as much after each further one, and never more than
// longestPause, so that a client is back within seconds when the service is.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// Post sends body under key until an answer settles it, or ctx ends. With ErrUnknown comes what was said last.
func (c *Client) Post(ctx context.Context, path, key string, body any) (Answer, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return Answer{}, fmt.Errorf("encode request: %w", err)
	}

	for pause, first := firstPause, true; ; pause, first = min(2*pause, longestPause), false {
		a, err := c.attempt(ctx, path, key, encoded)
		refused := err == nil && refuses(a)
		if err == nil && (a.Settled() || refused && first) {
			return a, nil
		}
		if err == nil {
			err = errors.New(strings.TrimSpace(fmt.Sprintf("answer %d %s", a.Status, a.Problem().Code)))
		}

		// Another attempt would be refused alike, and that says nothing about the earlier ones.
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

// refuses reports whether the service refuses the request and would refuse a repeat: it says so in the problem's retry. What
// a proxy says in its place has none.
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

func (c *Client) attempt(ctx context.Context, path, key string, body []byte) (Answer, error) {
	began := time.Now()
	a, err := c.do(ctx, http.MethodPost, path, key, body)
	if c.Attempted != nil {
		c.Attempted(Attempt{Path: path, Key: key, Body: body, Answer: a, Err: err, Began: began, Ended: time.Now()})
	}
	return a, err
}

// Get asks once: a question may be repeated by whoever asks it.
func (c *Client) Get(ctx context.Context, path string) (Answer, error) {
	return c.do(ctx, http.MethodGet, path, "", nil)
}

func (c *Client) do(ctx context.Context, method, path, key string, body []byte) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("make request: %w", err)
	}
	// With a key and a way to read the body anew, net/http repeats a POST by itself on a connection that broke. Attempted would not
	// hear of it, and the answer to the repeat would pass for that to a first attempt, which any refusal settles.
	r.GetBody = nil
	r.Header.Set("Authorization", "Bearer "+c.Token)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
	}
	send := http.Client{Timeout: 20 * time.Second}
	if c.HTTP != nil {
		send = *c.HTTP
	}
	// A redirection is not followed: most turn a POST into a GET.
	send.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := send.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("read answer: %w", err) // half an answer is none
	}
	return Answer{response.StatusCode, response.Header, read}, nil
}

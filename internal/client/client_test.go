package client_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncepay/oncepay/internal/client"
)

// script answers one request after the other, the last reply again and again, and remembers the
// requests. It is a service without a network, so that the clock of a synctest bubble works.
type script struct {
	replies  []reply
	requests []seen
}

// reply is an answer, or the error in place of one.
type reply struct {
	status int
	header map[string]string
	body   string
	torn   bool // the body ends too early
	err    error
}

type seen struct {
	Key, Body, Authorization, IfMatch, Prefer string
	After                                     time.Duration // since the first request
	at                                        time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	request := seen{Key: r.Header.Get("Idempotency-Key"), Body: string(body), Authorization: r.Header.Get("Authorization"), IfMatch: r.Header.Get("If-Match"), Prefer: r.Header.Get("Prefer"), at: time.Now()}
	if len(s.requests) > 0 {
		request.After = request.at.Sub(s.requests[0].at)
	}
	said := s.replies[min(len(s.requests), len(s.replies)-1)]
	s.requests = append(s.requests, request)
	if said.err != nil {
		return nil, said.err
	}
	content := io.Reader(strings.NewReader(said.body))
	if said.torn {
		content = io.MultiReader(content, broken{})
	}
	response := &http.Response{StatusCode: said.status, Header: http.Header{}, Body: io.NopCloser(content), Request: r}
	for name, value := range said.header {
		response.Header.Set(name, value)
	}
	return response, nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// post sends one request to the service that replies so, and ends after ten seconds of the bubble's
// time.
func post(t *testing.T, replies ...reply) (s *script, a client.Answer, err error, attempts []client.Attempt) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s = &script{replies: replies}
		c := client.Client{
			URL: "http://service/", Token: "secret", HTTP: &http.Client{Transport: s},
			Attempted: func(a client.Attempt) { attempts = append(attempts, a) },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		a, err = c.Post(ctx, "/api/v1/payments", "k-1", map[string]int{"amount_minor": 2500})
	})
	return s, a, err, attempts
}

var errCut = errors.New("connection reset by peer")

func made(replayed string) reply {
	return reply{status: 201, header: map[string]string{"Idempotent-Replayed": replayed}, body: `{"id":"p"}`}
}

func problem(status int, code, retry string, header ...string) reply {
	r := reply{
		status: status, body: `{"code":"` + code + `","detail":"so it is","retry":"` + retry + `","request_id":"r-1"}`,
		header: map[string]string{"Content-Type": "application/problem+json"},
	}
	for i := 0; i < len(header); i += 2 {
		r.header[header[i]] = header[i+1]
	}
	return r
}

func TestPostRepeatsUntilFinal(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]reply{
		"a cut connection":              {err: errCut},
		"a torn body":                   {status: 201, header: map[string]string{"Idempotent-Replayed": "false"}, body: `{"id`, torn: true},
		"an unavailable service":        problem(503, "unavailable", "same-key"),
		"an unknown outcome":            problem(503, "outcome-unknown", "same-key"),
		"an unforeseen failure":         problem(500, "internal", "same-key"),
		"a request in progress":         problem(409, "request-in-progress", "same-key"),
		"a rate limit":                  problem(429, "rate-limited", "same-key"),
		"a proxy's 502":                 {status: 502, body: "bad gateway"},
		"a proxy's 404":                 {status: 404, header: map[string]string{"Content-Type": "text/html"}, body: "no such site"},
		"a proxy's 429":                 {status: 429},
		"a redirection":                 {status: 307, header: map[string]string{"Location": "http://elsewhere/"}},
		"another site's 200":            {status: 200, body: "<html>Welcome to the hotel"},
		"another service's problem":     {status: 403, header: map[string]string{"Content-Type": "application/problem+json"}, body: `{"title":"Blocked"}`},
		"a refusal that is cut to HTML": {status: 402, header: map[string]string{"Content-Type": "application/problem+json"}, body: `<html>`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, a, err, _ := post(t, first, first, made("true"))
			if err != nil || a.Status != 201 || !a.Replayed() || string(a.Body) != `{"id":"p"}` {
				t.Errorf("%d %s, %v", a.Status, a.Body, err)
			}
			if len(s.requests) != 3 {
				t.Fatalf("%d requests", len(s.requests))
			}
			for _, r := range s.requests {
				if r.Key != "k-1" || r.Body != `{"amount_minor":2500}` || r.Authorization != "Bearer secret" {
					t.Errorf("request %+v", r)
				}
			}
			// Without Retry-After: up to 50 ms, then up to 100 ms.
			if last := s.requests[2].After; last > 150*time.Millisecond {
				t.Errorf("the third came after %s", last)
			}
		})
	}
}

func TestFinalAnswerIsAskedForOnce(t *testing.T) {
	t.Parallel()
	for _, said := range []reply{
		made("false"), made("true"),
		problem(402, "insufficient-funds", "new-key", "Idempotent-Replayed", "true"),
		problem(422, "idempotency-key-reused", "new-key"),
		problem(422, "invalid-amount", "never"),
		problem(401, "unauthorized", "never"),
	} {
		s, a, err, _ := post(t, said, made("false"))
		if err != nil || a.Status != said.status || string(a.Body) != said.body || len(s.requests) != 1 {
			t.Errorf("%d %s, %v after %d requests", a.Status, a.Body, err, len(s.requests))
		}
	}
	_, a, _, _ := post(t, problem(402, "insufficient-funds", "new-key"))
	want := client.Problem{Code: "insufficient-funds", Detail: "so it is", Retry: "new-key", RequestID: "r-1"}
	if diff := cmp.Diff(want, a.Problem()); diff != "" {
		t.Errorf("problem (-want +got):\n%s", diff)
	}
}

func TestPostHonoursRetryAfter(t *testing.T) {
	t.Parallel()
	for asked, least := range map[string]time.Duration{"1": time.Second, "3": 3 * time.Second, "0": 0, "-1": 0, "soon": 0} {
		s, _, err, _ := post(t, problem(409, "request-in-progress", "same-key", "Retry-After", asked), made("true"))
		if err != nil || len(s.requests) != 2 {
			t.Fatalf("Retry-After: %s: %v after %d requests", asked, err, len(s.requests))
		}
		if after := s.requests[1].After; after < least || after > least+50*time.Millisecond {
			t.Errorf("Retry-After: %s: it came back after %s", asked, after)
		}
	}
}

func TestPausesGrowToTwoSeconds(t *testing.T) {
	t.Parallel()
	s, _, err, _ := post(t, reply{err: errCut})
	if !errors.Is(err, client.ErrUnknown) || len(s.requests) < 8 || len(s.requests) > 200 {
		t.Errorf("%v after %d requests in ten seconds", err, len(s.requests))
	}
	for i := 1; i < len(s.requests); i++ {
		if pause := s.requests[i].After - s.requests[i-1].After; pause > min(50*time.Millisecond<<(i-1), 2*time.Second) {
			t.Errorf("pause %d: %s", i, pause)
		}
	}
}

func TestOutcomeUnknownAtDeadline(t *testing.T) {
	t.Parallel()
	_, a, err, _ := post(t, problem(503, "unavailable", "same-key", "Retry-After", "60"))
	if !errors.Is(err, client.ErrUnknown) || a.Status != 503 || !strings.Contains(err.Error(), "answer 503 unavailable") {
		t.Errorf("%d, %v", a.Status, err)
	}
	_, _, err, _ = post(t, reply{err: errCut})
	if !errors.Is(err, client.ErrUnknown) || !errors.Is(err, errCut) || strings.Contains(err.Error(), "secret") {
		t.Errorf("why there was no answer: %v", err)
	}
}

// Every answer that can follow on an attempt of unknown outcome, and the same answer to the first
// attempt.
func TestRefusalAfterUnknownAttempt(t *testing.T) {
	t.Parallel()
	unknown := map[string]reply{
		"timeout":         {err: context.DeadlineExceeded},
		"reset":           {err: errCut},
		"torn":            {status: 201, header: map[string]string{"Idempotent-Replayed": "false"}, body: `{"id`, torn: true},
		"500":             problem(500, "internal", "same-key"),
		"502":             {status: 502},
		"503":             problem(503, "unavailable", "same-key"),
		"outcome-unknown": problem(503, "outcome-unknown", "same-key"),
		"unreadable":      problem(503, "idempotency-key-unreadable", "same-key"),
		"in-progress":     problem(409, "request-in-progress", "same-key"),
		"rate-limited":    problem(429, "rate-limited", "same-key"),
		"slow-body":       problem(408, "request-timeout", "same-key"),
		"redirect":        {status: 307},
		"stranger":        {status: 200, body: "<html>"},
	}
	for name, last := range map[string]struct {
		reply
		settles bool
	}{
		"first":                 {made("false"), true},
		"replay":                {made("true"), true},
		"stored 402":            {problem(402, "insufficient-funds", "new-key", "Idempotent-Replayed", "true"), true},
		"stored 403":            {problem(403, "funding-forbidden", "new-key", "Idempotent-Replayed", "false"), true},
		"stored 422":            {problem(422, "currency-mismatch", "never", "Idempotent-Replayed", "true"), true},
		"reused":                {problem(422, "idempotency-key-reused", "new-key"), true},
		"400":                   {problem(400, "malformed-json", "never"), false},
		"401":                   {problem(401, "unauthorized", "never"), false},
		"402 not stored":        {problem(402, "insufficient-funds", "new-key"), false},
		"403":                   {problem(403, "forbidden", "never"), false},
		"404":                   {problem(404, "not-found", "never"), false},
		"405":                   {problem(405, "method-not-allowed", "never"), false},
		"413":                   {problem(413, "body-too-large", "never"), false},
		"415":                   {problem(415, "unsupported-media-type", "never"), false},
		"422":                   {problem(422, "invalid-amount", "never"), false},
		"409 reused":            {problem(409, "idempotency-key-reused", "new-key"), false},
		"reused, not a problem": {reply{status: 422, body: `{"code":"idempotency-key-reused","retry":"new-key"}`}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for before, first := range unknown {
				s, a, err, _ := post(t, first, last.reply)
				if last.settles && (err != nil || a.Status != last.status || len(s.requests) != 2) {
					t.Errorf("after %s: %d, %v after %d requests", before, a.Status, err, len(s.requests))
				}
				if !last.settles && (!errors.Is(err, client.ErrUnknown) || !strings.HasSuffix(err.Error(), "; the key is k-1")) {
					t.Errorf("after %s: %d, %v", before, a.Status, err)
				}
				if a.Settled() != last.settles {
					t.Errorf("after %s: settled %v", before, a.Settled())
				}
			}
		})
	}
}

// truth is a service that knows whether it was paid. It loses requests and replies, and at any
// moment may refuse everything before it looks at the key, as after a deploy or without a
// credential.
type truth struct {
	chance *rand.Rand
	paid   bool
}

func (s *truth) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	var said reply
	switch s.chance.IntN(8) {
	case 0:
		return nil, errCut // the request is lost
	case 1:
		s.paid = true
		return nil, errCut // the reply is lost
	case 2:
		s.paid = true
		said = problem(503, "outcome-unknown", "same-key")
	case 3:
		said = problem(429, "rate-limited", "same-key")
	case 4:
		said = problem(401, "unauthorized", "never")
	case 5:
		said = problem(422, "invalid-field", "never")
	case 6:
		said = problem(409, "request-in-progress", "same-key")
	default:
		said, s.paid = made(strconv.FormatBool(s.paid)), true
	}
	return (&script{replies: []reply{said}}).RoundTrip(r)
}

func TestRefusedMeansNotPaid(t *testing.T) {
	t.Parallel()
	refused, unknown := 0, 0
	for seed := range uint64(5000) {
		s := &truth{chance: rand.New(rand.NewPCG(seed, 1))}
		synctest.Test(t, func(t *testing.T) {
			c := client.Client{URL: "http://service/", HTTP: &http.Client{Transport: s}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			a, err := c.Post(ctx, "/api/v1/payments", "k", 1)
			switch {
			case errors.Is(err, client.ErrUnknown):
				unknown++
			case err != nil:
				t.Fatal(err)
			case a.Status == 201:
				if !s.paid {
					t.Fatalf("seed %d: it says paid", seed)
				}
			default:
				if refused++; s.paid {
					t.Fatalf("seed %d: it says %d, and it was paid", seed, a.Status)
				}
			}
		})
	}
	if refused == 0 || unknown == 0 {
		t.Errorf("%d refused, %d unknown: the test says little", refused, unknown)
	}
}

func TestTransportRepeatsNothing(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch requests.Add(1) {
		case 1: // leaves a connection that net/http takes again
			w.Header().Set("Idempotent-Replayed", "false")
			w.WriteHeader(http.StatusCreated)
		case 2:
			panic(http.ErrAbortHandler) // it may have paid, but no client hears of it
		default: // meanwhile the credential was revoked
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"code":"unauthorized","retry":"never"}`)
		}
	}))
	defer service.Close()
	attempts := 0
	c := client.Client{URL: service.URL, Attempted: func(client.Attempt) { attempts++ }}
	if _, err := c.Post(t.Context(), "/", "k-1", 1); err != nil {
		t.Fatal(err)
	}
	a, err := c.Post(t.Context(), "/", "k-2", 1)
	if !errors.Is(err, client.ErrUnknown) || a.Status != http.StatusUnauthorized || attempts != 3 || requests.Load() != 3 {
		t.Errorf("%d, %v after %d attempts and %d requests", a.Status, err, attempts, requests.Load())
	}
}

func TestAttemptedSeesEveryAttempt(t *testing.T) {
	t.Parallel()
	_, _, err, attempts := post(t, reply{err: errCut}, problem(503, "unavailable", "same-key", "Retry-After", "1"), made("false"))
	if err != nil || len(attempts) != 3 {
		t.Fatalf("%v, %d attempts", err, len(attempts))
	}
	for i, status := range []int{0, 503, 201} {
		a := attempts[i]
		if a.Answer.Status != status || (a.Err != nil) != (i == 0) || a.Key != "k-1" || a.Path != "/api/v1/payments" || string(a.Body) != `{"amount_minor":2500}` {
			t.Errorf("attempt %d: %+v", i, a)
		}
		if a.Ended.Before(a.Began) || i > 0 && a.Began.Before(attempts[i-1].Ended) {
			t.Errorf("attempt %d: %s to %s", i, a.Began, a.Ended)
		}
	}
}

func TestGetAsksOnceWithoutKey(t *testing.T) {
	t.Parallel()
	for _, said := range []reply{{status: 200, body: "{}"}, problem(404, "not-found", "never"), problem(503, "unavailable", "same-key"), {err: errCut}} {
		s := &script{replies: []reply{said}}
		c := client.Client{URL: "http://service", Token: "secret", HTTP: &http.Client{Transport: s}}
		a, err := c.Get(t.Context(), "/api/v1/payments/p")
		if a.Status != said.status || !errors.Is(err, said.err) || len(s.requests) != 1 || s.requests[0].Key != "" {
			t.Errorf("%d, %v: %+v", a.Status, err, s.requests)
		}
	}
}

func TestUnencodableBodyIsNotUnknown(t *testing.T) {
	t.Parallel()
	s := &script{}
	c := client.Client{URL: "http://service", HTTP: &http.Client{Transport: s}}
	if _, err := c.Post(t.Context(), "/", "k", func() {}); err == nil || errors.Is(err, client.ErrUnknown) || len(s.requests) != 0 {
		t.Errorf("%v after %d requests", err, len(s.requests))
	}
}

// Another version would be another request, which the key does not belong to.
func TestPostIfSendsTheSameVersionEachTime(t *testing.T) {
	t.Parallel()
	for version, want := range map[int64]string{3: `"3"`, 0: ""} {
		var sent []string
		var attempts []client.Attempt
		synctest.Test(t, func(t *testing.T) {
			s := &script{replies: []reply{{err: errCut}, problem(412, "version-mismatch", "new-key", "Idempotent-Replayed", "true")}}
			c := client.Client{
				URL: "http://service", HTTP: &http.Client{Transport: s},
				Attempted: func(a client.Attempt) { attempts = append(attempts, a) },
			}
			a, err := c.PostIf(t.Context(), "/api/v1/payments/p/capture", "k-1", version, map[string]int{})
			if err != nil || a.Status != 412 || !a.Settled() {
				t.Errorf("%d %s, %v", a.Status, a.Body, err)
			}
			for _, r := range s.requests {
				sent = append(sent, r.IfMatch)
			}
		})
		if diff := cmp.Diff([]string{want, want}, sent); diff != "" {
			t.Error(diff)
		}
		if len(attempts) != 2 || attempts[0].IfVersion != version || attempts[1].IfVersion != version {
			t.Errorf("%+v", attempts)
		}
	}
}

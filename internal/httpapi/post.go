package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// post handles a POST under an Idempotency-Key: it decodes the body, submits the command and sends
// the answer, first or replayed, as it was stored. A route with {id} is about that payment.
func (s *server) post(route string, decode decoder) handler {
	below := strings.Contains(route, "{id}")

	return func(c *call) (response, error) {
		if c.keyErr != nil {
			c.observe.Outcome = "invalid"
			return response{}, c.keyErr
		}

		// Everything the client sent is read and checked before any transaction begins.
		var about payments.Target
		var params []string
		if below {
			var err error
			if about, err = c.target(); err != nil {
				return response{}, err
			}
			params = paramsOf(about)
		}
		body, err := readBody(c.Request)
		if err != nil {
			return response{}, err
		}
		command, canonical, err := decode(about, body)
		if err != nil {
			return response{}, err
		}

		wait, asked := preferredWait(c.Header)
		if asked {
			c.header.Set("Preference-Applied", "wait="+strconv.Itoa(int(wait.Seconds())))
		}

		// From here on the client may be gone; serve.go has detached the context. What was received
		// is done, and answered to a repeat.
		r := s.request(c, route, params, command, canonical)
		answer, err := s.submit(c.Context(), r, wait)
		if answer.State != 0 {
			c.observe.Outcome = answer.State.String()
		}
		if err != nil {
			return response{}, err
		}
		return answered(c.header, answer)
	}
}

func (s *server) request(
	c *call, route string, params []string, command payments.Command, canonical []byte,
) payments.Request {
	// What the credential may do is not part of the canonical bytes: see decoder.
	if payment, ok := command.(payments.CreatePayment); ok {
		payment.MayFund = c.identity.Has(credentials.ScopeFund)
		command = payment
	}

	fingerprint := idempotency.NewFingerprint(c.tenant(), c.Method, route, params, canonical)
	r := payments.Request{
		Request: idempotency.Request{
			TenantID: c.tenant(), ClientID: c.identity.ClientID, Key: c.key, RequestID: c.id,
			Fingerprint: fingerprint,
		},
		Method: c.Method, Route: route, Command: command,
	}
	if s.Headers != nil {
		r.Headers = s.Headers(c.Context())
	}
	return r
}

// submit executes r or finds its answer. It tries again when the account or payment that another
// session held is free, and when another attempt under the key is over: then that one's answer is
// found, durable like every replay, or it left nothing behind and the work is done now.
func (s *server) submit(
	ctx context.Context, r payments.Request, wait time.Duration,
) (idempotency.Answer, error) {
	until := time.Now().Add(wait)

	for {
		answer, err := s.attempt(ctx, r)
		if err != nil {
			return answer, err
		}

		// Both wait outside the tenant's share, without a lock or transaction.
		var again bool
		switch answer.State {
		case idempotency.Busy:
			again = s.Await(ctx, r)
		case idempotency.InProgress:
			again, err = s.awaitOther(ctx, r.Request, until)
		default: // done
		}
		if !again {
			return answer, err
		}
	}
}

// awaitOther polls until the other attempt under the key is over, and reports whether it is.
func (s *server) awaitOther(
	ctx context.Context, r idempotency.Request, until time.Time,
) (over bool, err error) {
	for pause := minPause; sleep(ctx, min(pause, time.Until(until))); pause = min(2*pause, maxPause) {
		answer, err := s.peek(ctx, r)
		if err != nil || answer.State != idempotency.InProgress {
			return err == nil, err
		}
	}
	return false, nil
}

// attempt submits r if it is admitted. Otherwise it only looks the key up: a finished one still
// gets its replay.
func (s *server) attempt(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
	place, err := s.admission.work(ctx, r.TenantID, r.ClientID)

	var refusal *problem
	switch {
	case errors.As(err, &refusal):
		return s.replayOr(ctx, r.Request, refusal)
	case err != nil:
		return idempotency.Answer{}, err
	}
	defer place.leave()

	answer, err := s.Submit(ctx, r)
	if notBegun(err) || err == nil && answer.State != idempotency.New {
		place.refund() // nothing was executed
	}
	return answer, err
}

// replayOr returns the stored answer of a finished key and refuses a new one. It bypasses the
// committers, but waits for the synchronous standby like every other replay.
func (s *server) replayOr(
	ctx context.Context, r idempotency.Request, refusal *problem,
) (idempotency.Answer, error) {
	done := s.admission.lookUp(ctx, r.TenantID)
	if done == nil {
		return idempotency.Answer{}, refusal
	}
	defer done()

	// On the primary, whose answer is durable: a standby may not have it yet.
	answer, err := idempotency.Find(ctx, s.Write, r, s.Retention)
	if err == nil && answer.State == idempotency.New {
		return idempotency.Answer{}, refusal
	}
	return answer, err
}

// answered makes the response to an answer. Headers tell a first answer from a replay.
func answered(h http.Header, a idempotency.Answer) (response, error) {
	if !a.Expires.IsZero() {
		h.Set("Idempotency-Key-Expires", httpDate(a.Expires))
	}

	switch a.State {
	case idempotency.New:
		h.Set("Idempotent-Replayed", "false")
	case idempotency.Replay:
		h.Set("Idempotent-Replayed", "true")
		h.Set("Original-Request-Id", a.RequestID)
		h.Set("Original-Date", httpDate(a.Date))
	case idempotency.InProgress:
		return response{}, refuse("request-in-progress",
			"Repeat the identical request with the same key to get its answer.").
			with("Retry-After", "1")
	case idempotency.Mismatch:
		return response{}, refuse("idempotency-key-reused",
			"This key belongs to another request, which has been answered. "+
				"Nothing was done; use a new key.")
	case idempotency.Busy:
		return response{}, refuse("unavailable",
			"Nothing was done: an account or the payment is locked. "+
				"Repeat the identical request later with the same key.").later()
	case idempotency.Moving:
		return response{}, payments.ErrMoving
	default: // Unreadable: during a deploy, an instance of the newer version can read it
		return response{}, refuse("idempotency-key-unreadable",
			"Nothing was done. Repeat the identical request later with the same key.").later()
	}

	// Byte for byte as it was stored.
	r := a.Response
	return response{r.Status, r.ContentType, r.Location, r.Body}, nil
}

func httpDate(t time.Time) string { return t.UTC().Format(http.TimeFormat) }

package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// post handles a POST under an Idempotency-Key: what decode makes of the body is submitted, and the answer, the first one
// or its replay, is sent as it is.
func (s *server) post(route string, decode decoder) http.HandlerFunc {
	return s.serve(func(h http.Header, r *http.Request) (idempotency.Response, error) {
		x := exchangeOf(r)
		if x.keyErr != nil {
			x.seen.Outcome = "invalid"
			return idempotency.Response{}, x.keyErr
		}
		body, err := readBody(r)
		if err != nil {
			return idempotency.Response{}, err
		}
		command, canonical, err := decode(body)
		if err != nil {
			return idempotency.Response{}, err
		}
		request := s.request(r, x, route, command, canonical)
		wait, asked := preferredWait(r.Header)
		if asked {
			h.Set("Preference-Applied", "wait="+strconv.Itoa(int(wait.Seconds())))
		}
		answer, err := s.submit(r.Context(), request, wait)
		if answer.State != 0 {
			x.seen.Outcome = answer.State.String()
		}
		if err != nil {
			return idempotency.Response{}, err
		}
		return answered(h, answer)
	})
}

func (s *server) request(r *http.Request, x *exchange, route string, command payments.Command, canonical []byte) payments.Request {
	who := x.seen.Identity
	if c, ok := command.(payments.CreatePayment); ok {
		c.MayFund = who.Has(credentials.ScopeFund) // after the canonical bytes were made
		command = c
	}
	request := payments.Request{
		Request: idempotency.Request{
			TenantID: who.TenantID, ClientID: who.ClientID, Key: x.seen.Key, RequestID: x.seen.RequestID,
			Fingerprint: idempotency.NewFingerprint(who.TenantID, r.Method, route, nil, canonical),
		},
		Method: r.Method, Route: route, Command: command,
	}
	if s.Headers != nil {
		request.Headers = s.Headers(r.Context())
	}
	return request
}

// submit executes r or finds its answer. While an account is locked by somebody else it waits, outside the tenant's share. While another attempt is at work under the key it looks again and again for up to
// wait, outside any lock and with no transaction open in between.
func (s *server) submit(ctx context.Context, r payments.Request, wait time.Duration) (idempotency.Answer, error) {
	until, pause := time.Now().Add(wait), minPause
	for {
		answer, err := s.attempt(ctx, r)
		if err == nil && answer.State == idempotency.Busy && s.Await != nil && s.Await(ctx, r) {
			continue
		}
		if err != nil || answer.State != idempotency.InProgress {
			return answer, err
		}
		for answer.State == idempotency.InProgress {
			if !sleep(ctx, min(pause, time.Until(until))) {
				return answer, nil
			}
			pause = min(2*pause, maxPause)
			if answer, err = s.peek(ctx, r.Request); err != nil {
				return answer, err
			}
		}
		// The other attempt is over: this one's turn, to do the work if nothing was left behind, or to be given the answer as
		// every repeat is, from the primary and durable.
	}
}

// attempt submits r if its client is within its rate and its tenant within its share. If not, the key is only looked at: a finished
// one gets its replay.
func (s *server) attempt(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
	if again := s.limits.take(r.ClientID); again > 0 {
		return s.replayOr(ctx, r, refuse("rate-limited", "Nothing was done. Repeat the identical request later.").with("Retry-After", seconds(again)))
	}
	if err := s.shares.take(ctx, r.TenantID); err != nil {
		s.limits.giveBack(r.ClientID)
		if !errors.Is(err, errTooMany) {
			return idempotency.Answer{}, err
		}
		return s.replayOr(ctx, r, refuse("rate-limited", "Nothing was done: too many requests of this tenant are being worked on. Repeat the identical request later.").
			with("Retry-After", soon()))
	}
	defer s.shares.giveBack(r.TenantID)
	answer, err := s.Submit(ctx, r)
	if err == nil && answer.State != idempotency.New {
		s.limits.giveBack(r.ClientID) // nothing was executed
	}
	return answer, err
}

// replayOr returns the stored answer of a finished key, and refuses a new one, or any when too many want to look at theirs. It
// does not wait for the committers, but for the synchronous standby like every other replay.
func (s *server) replayOr(ctx context.Context, r payments.Request, refusal *problem) (idempotency.Answer, error) {
	done := s.looks.take(ctx, r.TenantID)
	if done == nil {
		return idempotency.Answer{}, refusal
	}
	defer done()
	answer, err := idempotency.Find(ctx, s.Write, r.Request, s.Retention)
	if err == nil && answer.State == idempotency.New {
		return idempotency.Answer{}, refusal
	}
	return answer, err
}

func (s *server) peek(ctx context.Context, r idempotency.Request) (a idempotency.Answer, err error) {
	err = s.read(ctx, r.TenantID, func(tx pgx.Tx) (err error) {
		a, err = idempotency.Peek(ctx, tx, r, s.Retention)
		return err
	})
	return a, err
}

// answered tells a client in headers what kind of answer it gets.
func answered(h http.Header, a idempotency.Answer) (idempotency.Response, error) {
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
		return a.Response, refuse("request-in-progress", "Repeat the identical request with the same key to get its answer.").with("Retry-After", "1")
	case idempotency.Mismatch:
		return a.Response, refuse("idempotency-key-reused", "This key belongs to another request, which was answered. Nothing was done; send this one under a new key.")
	case idempotency.Busy:
		return a.Response, refuse("unavailable", "Nothing was done: an account is locked. Repeat the identical request later with the same key.").with("Retry-After", soon())
	default: // Unreadable: while a deploy is under way; an instance of the newer version can tell
		return a.Response, refuse("idempotency-key-unreadable", "Nothing was done. Repeat the identical request later with the same key.").with("Retry-After", soon())
	}
	return a.Response, nil
}

func httpDate(t time.Time) string { return t.UTC().Format(http.TimeFormat) }

// seconds rounds up: who comes a moment too early is refused again.
func seconds(d time.Duration) string {
	return strconv.Itoa(int((d + time.Second - 1) / time.Second))
}

package psp

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// scripted answers one call and one search.
type scripted struct {
	Provider
	sent, found  Answer
	calls, finds int
}

func (s *scripted) Charge(context.Context, payments.Operation) Answer { s.calls++; return s.sent }
func (s *scripted) Refund(context.Context, payments.Operation) Answer { s.calls++; return s.sent }
func (s *scripted) Find(context.Context, payments.Operation) Answer   { s.finds++; return s.found }

// TestCall: which result follows from what the provider says, how often it was called before, and how long ago.
func TestCall(t *testing.T) {
	t.Parallel()
	entry := Entry{Reference: "ch_1", AmountMinor: 2500, Currency: "USD"}
	answer := func(o Outcome) Answer {
		a := Answer{Outcome: o, Detail: string(o)}
		if o == Succeeded {
			a.Entry = entry
		}
		return a
	}
	const day = 24 * time.Hour
	type want struct {
		state        payments.OperationState
		code         payments.Code
		operator     bool
		calls, finds int
	}
	unknown := func(calls, finds int) want { return want{payments.Unknown, "", false, calls, finds} }
	operator := func(calls, finds int) want { return want{payments.Unknown, "", true, calls, finds} }
	succeeded := func(calls, finds int) want { return want{payments.Succeeded, "", false, calls, finds} }
	declined := func(calls, finds int) want {
		return want{payments.OperationDeclined, payments.CardDeclined, false, calls, finds}
	}
	failed := func(calls, finds int) want {
		return want{payments.OperationFailed, payments.RefusedByPSP, false, calls, finds}
	}

	for name, c := range map[string]struct {
		tries       int
		age         time.Duration
		sent, found Outcome
		want        want
	}{
		"succeeded":                             {1, 0, Succeeded, "", succeeded(1, 0)},
		"succeeded at last":                     {9, time.Hour, Succeeded, "", succeeded(1, 0)},
		"declined at once":                      {1, 0, Declined, "", declined(1, 0)},
		"refused at once":                       {1, 0, Refused, "", failed(1, 0)},
		"declined later, nothing found":         {2, 0, Declined, Refused, declined(1, 1)},
		"declined later, found declined":        {2, 0, Declined, Declined, declined(1, 1)},
		"declined later, executed before":       {2, 0, Declined, Succeeded, succeeded(1, 1)},
		"refused later, nothing found":          {2, 0, Refused, Refused, failed(1, 1)},
		"refused later, executed before":        {2, 0, Refused, Succeeded, succeeded(1, 1)},
		"refused later, declined before":        {2, 0, Refused, Declined, declined(1, 1)},
		"refused later, the books do not open":  {2, 0, Refused, Timeout, unknown(1, 1)},
		"declined later, the books do not open": {2, 0, Declined, ServerError, unknown(1, 1)},
		"refused later, another amount found":   {2, 0, Refused, Conflict, operator(1, 1)},
		"timeout":                               {1, 0, Timeout, "", unknown(1, 0)},
		"unreachable":                           {1, 0, Unreachable, "", unknown(1, 0)},
		"server error":                          {1, 0, ServerError, "", unknown(1, 0)},
		"in progress":                           {1, 0, InProgress, "", unknown(1, 0)},
		"too many":                              {1, 0, RateLimited, "", unknown(1, 0)},
		"wrong API key":                         {1, 0, Unauthorized, "", unknown(1, 0)},
		"unreadable":                            {1, 0, Unreadable, "", unknown(1, 0)},
		"breaker open":                          {1, 0, BreakerOpen, "", unknown(1, 0)},
		"another amount":                        {1, 0, Conflict, "", operator(1, 0)},
		"key reused":                            {1, 0, KeyReused, "", operator(1, 0)},
		"the last hour of the key":              {50, 23*time.Hour - time.Second, Succeeded, "", succeeded(1, 0)},
		"key of a minute, at the claim's end":   {50, 36 * time.Second, "", Succeeded, succeeded(0, 1)},
		"key forgotten, executed":               {50, 23*time.Hour + time.Second, "", Succeeded, succeeded(0, 1)},
		"key forgotten, declined":               {50, day, "", Declined, declined(0, 1)},
		"key forgotten, nothing found":          {50, day, "", Refused, operator(0, 1)},
		"key forgotten, the books do not open":  {50, day, "", Timeout, unknown(0, 1)},
		"key forgotten, another amount":         {50, day, "", Conflict, operator(0, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []payments.OperationKind{payments.Charge, payments.RefundCharge} {
				op := payments.Operation{ID: uuid.New(), Kind: kind, AmountMinor: 2500, Currency: "USD", Tries: c.tries, Token: 7, Age: c.age}
				p := &scripted{sent: answer(c.sent), found: answer(c.found)}
				var seen int
				retention := day
				if c.age > 0 && c.age < time.Minute {
					retention = time.Minute
				}
				call := caller{p, retention, func(ctx context.Context, _ string, _ payments.Operation) (context.Context, func(Outcome)) {
					return ctx, func(Outcome) { seen++ }
				}}
				r, _ := call.call(t.Context(), op)
				if got := (want{r.State, r.Code, r.AskOperator, p.calls, p.finds}); got != c.want || seen != p.calls+p.finds {
					t.Errorf("%s: got %+v, want %+v, of which %d were observed", kind, got, c.want, seen)
				}
				moved := r.State == payments.Succeeded
				if r.OperationID != op.ID || r.Token != 7 || moved != (r.AmountMinor == 2500 && r.Currency == "USD" && r.Reference == "ch_1") {
					t.Errorf("%s: %+v", kind, r)
				}
				if again := r.State == payments.Unknown && !r.AskOperator; again != (r.RetryAfter > 0) {
					t.Errorf("%s: again after %s", kind, r.RetryAfter)
				}
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for tries, full := range map[int]time.Duration{0: 1, 1: 1, 2: 2, 3: 4, 9: 256, 10: 300, 100: 300, 1 << 30: 300} {
		full *= time.Second
		seen := map[time.Duration]bool{}
		for range 100 {
			got := backoff(tries)
			seen[got] = true
			if got <= full/2 || got > full {
				t.Errorf("try %d: %s, not within %s", tries, got, full)
			}
		}
		if len(seen) < 50 {
			t.Errorf("try %d: always the same", tries)
		}
	}
	r := result(payments.Operation{Tries: 1}, Answer{Outcome: RateLimited, RetryAfter: 30 * time.Second})
	if r.RetryAfter != 30*time.Second {
		t.Errorf("the provider asked for 30s, got %s", r.RetryAfter)
	}
	r = result(payments.Operation{Tries: 9}, Answer{Outcome: RateLimited, RetryAfter: time.Second})
	if r.RetryAfter < 128*time.Second {
		t.Errorf("the provider shortens the backoff to %s", r.RetryAfter)
	}
}

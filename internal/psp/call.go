package psp

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/oncepay/oncepay/internal/payments"
)

// caller turns claimed operations into results.
type caller struct {
	provider     Provider
	keyRetention time.Duration
	onCall       func(context.Context, string, payments.Operation) (context.Context, func(Outcome))
}

const (
	// A provider counts the age of a key by its own clock, from when a try arrived. So we stop
	// using one earlier: by a twenty-fourth, and by more than a claim lasts, at whose end a call may
	// still begin.
	retentionMargin = 24
	leastMargin     = lease + 5*time.Second

	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
)

// call executes op and returns what to record. It never guesses: a result ends the operation only
// if the provider said so about this key and no other try can have ended otherwise.
func (c *caller) call(ctx context.Context, op payments.Operation) (payments.Result, Outcome) {
	// The provider may have forgotten the key, and would charge again under it.
	if op.Age > c.keyRetention-max(c.keyRetention/retentionMargin, leastMargin) {
		return c.ask(ctx, op)
	}

	send := c.provider.Charge
	if op.Kind == payments.RefundCharge {
		send = c.provider.Refund
	}
	a := c.observed(ctx, string(op.Kind), op, send)

	// A refusal speaks of this try only: an earlier one may have been executed before the reason
	// for it arose, say before the card was blocked.
	refused := a.Outcome == Refused || a.Outcome == Declined
	if refused && op.Tries > 1 {
		found := c.find(ctx, op)
		if found.Outcome != Refused { // executed, or still unknown
			a = found
		}
	}
	return result(op, a), a.Outcome
}

// ask looks an operation up whose key may no longer be used.
func (c *caller) ask(ctx context.Context, op payments.Operation) (payments.Result, Outcome) {
	a := c.find(ctx, op)
	r := result(op, a)
	if a.Outcome != Refused {
		return r, a.Outcome
	}

	// Not in the books now. The last try may still be on its way: only people can tell.
	r.State, r.Code, r.AskOperator = payments.Unknown, "", true
	r.Error = "the provider may have forgotten the key, and has nothing under it"
	return r, a.Outcome
}

func (c *caller) find(ctx context.Context, op payments.Operation) Answer {
	return c.observed(ctx, "find", op, c.provider.Find)
}

func (c *caller) observed(
	ctx context.Context, call string, op payments.Operation,
	send func(context.Context, payments.Operation) Answer,
) Answer {
	ctx, end := c.onCall(ctx, call, op)
	a := send(ctx, op)
	end(a.Outcome)
	return a
}

// result is what to record of an answer.
func result(op payments.Operation, a Answer) payments.Result {
	r := payments.Result{
		OperationID: op.ID, Token: op.Token,
		Reference: a.Entry.Reference, Error: a.Detail,
	}

	switch a.Outcome {
	case Succeeded:
		r.State, r.AmountMinor, r.Currency = payments.Succeeded, a.Entry.AmountMinor, a.Entry.Currency
	case Declined:
		r.State, r.Code = payments.OperationDeclined, payments.CardDeclined
	case Refused:
		r.State, r.Code = payments.OperationFailed, payments.RefusedByPSP

	// The books of the two sides differ, and no further call can change that.
	case Conflict, KeyReused:
		r.State, r.AskOperator = payments.Unknown, true

	default:
		r.State = payments.Unknown
		r.RetryAfter = max(backoff(op.Tries), a.RetryAfter)
	}
	return r
}

// backoff is 1 s, 2 s, 4 s … up to 5 min, less up to half, so that what failed together does not
// come back together.
func backoff(tries int) time.Duration {
	full := min(maxBackoff, firstBackoff<<min(max(tries-1, 0), 10))
	return full - rand.N(full/2)
}

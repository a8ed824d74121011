package psp

import (
	"context"
	"time"

	"github.com/oncepay/oncepay/internal/payments"
)

// Provider is a payment service provider. Each call is one request to it. Nothing here retries: a
// hidden second try would make a refusal of the first one look definite.
type Provider interface {
	// Charge takes op's amount from its card, once however often it is called: under op.Key().
	Charge(ctx context.Context, op payments.Operation) Answer
	// Refund gives op's amount of the charge op.ChargeReference back, once, under op.Key().
	Refund(ctx context.Context, op payments.Operation) Answer
	// Find looks up what was executed under op.Key(), Refused if nothing was. It changes nothing
	// and works after the provider has forgotten the key.
	Find(ctx context.Context, op payments.Operation) Answer
	// List returns a page of the provider's books, the oldest first, and whether there is more
	// after it. after is the reference of the last entry of the page before.
	List(ctx context.Context, kind payments.OperationKind, after string) ([]Entry, bool, error)
}

// Answer is what a provider said about an operation, or that we do not know.
type Answer struct {
	Outcome Outcome
	Entry   Entry // if the provider has one: succeeded, declined, conflict

	Detail     string        // for people: the provider's words or the error, one line
	RetryAfter time.Duration // the provider asks not to be called before that
}

// Entry is a charge or a refund in the provider's books.
type Entry struct {
	Reference       string // the provider's id
	ChargeReference string // of a refund: of the charge that it is about
	OperationID     string // as we sent it; empty: the entry is not ours
	AmountMinor     int64
	Currency        string // as we write it, upper case
	Declined        bool   // in the books, but no money moved
}

// Outcome is the class of an answer.
type Outcome string

// The outcomes that end an operation, or stop it.
const (
	Succeeded Outcome = "succeeded"
	Declined  Outcome = "declined"
	// Refused: not executed, the provider found the request itself wrong. Definite only if no
	// earlier try may have been executed.
	Refused Outcome = "refused"
	// Conflict: executed, but with another amount or currency, about another charge, or for another
	// operation.
	Conflict Outcome = "conflict"
	// KeyReused: the provider knows the key from another request. Keys are derived from operations,
	// so it is not from us.
	KeyReused Outcome = "key_reused"
)

// The outcomes that leave open whether the operation was executed.
const (
	Timeout      Outcome = "timeout"
	Unreachable  Outcome = "unreachable" // no connection, or it broke
	ServerError  Outcome = "server_error"
	InProgress   Outcome = "in_progress" // an earlier try still runs
	RateLimited  Outcome = "rate_limited"
	Unauthorized Outcome = "unauthorized" // our configuration, never the customer's fault
	Unreadable   Outcome = "unreadable"
	BreakerOpen  Outcome = "breaker_open" // not sent
)

// down reports whether the provider as a whole seems to be in trouble, which is what opens the
// breaker. An answer that we dislike is not: the provider works.
func (o Outcome) down() bool {
	return o == Timeout || o == Unreachable || o == ServerError
}

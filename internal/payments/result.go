package payments

import (
	"strings"
	"time"

	"github.com/google/uuid"
)

// Result is what became of an operation, as the PSP, its webhook or an operator says; or that it is
// not known.
type Result struct {
	OperationID uuid.UUID
	Kind        OperationKind  // what the PSP did; empty: it is known from whom the result is
	State       OperationState // one that has ended, or Unknown
	AmountMinor int64          // as the PSP executed it; zero: it does not say
	Currency    string         // with AmountMinor
	Reference   string         // the PSP's id
	Code        Code           // why it was declined or has failed
	ResolvedBy  string         // the operator; empty: the PSP
	Token       int64          // of the claim that led to it; zero: a webhook, an operator

	// Of Unknown only.
	Error       string        // what happened, for operators
	RetryAfter  time.Duration // when to claim it again
	AskOperator bool          // never again by itself
}

// Recorded is what Record did with a result.
type Recorded int

// What Record did.
const (
	Applied     Recorded = iota // the operation is as the result says, and so is its payment or refund
	Repeated                    // it ended so before
	Conflict                    // it ended otherwise or twice, or the PSP did something else: tell an operator
	Stale                       // under a claim that is lost, and not that the money moved
	NoOperation                 // there is no such operation, or an open one of a tenant that has left
	Unbookable                  // it ended, but a balance would overflow: it waits for an operator
	Locked                      // another session keeps a row that it needs: nothing was done, try again
)

// judge says what a result means for an operation.
func judge(o *Operation, r Result) Recorded {
	moved := r.State == Succeeded && r.AmountMinor != 0
	other := moved && (r.AmountMinor != o.AmountMinor || r.Currency != o.Currency)
	otherKind := r.Kind != "" && r.Kind != o.Kind
	// Two references of one operation: its key was executed twice.
	twice := r.State == Succeeded && r.Reference != "" && o.Reference != "" && r.Reference != o.Reference

	switch {
	case o.State.Ended() && r.State == Unknown:
		return Stale
	case o.State.Ended() && (r.State != o.State || other || otherKind || twice):
		return Conflict
	case o.State.Ended():
		return Repeated
	case other, otherKind:
		return Conflict
	case r.State == Unknown && r.Token == 0:
		return Stale
	case r.State != Succeeded && r.Token != 0 && r.Token != o.Token: // a later try may be executed
		return Stale
	}
	return Applied
}

// code is never empty if nothing was executed.
func (r Result) code() Code {
	switch {
	case r.State == OperationDeclined && r.Code == "":
		return CardDeclined
	case r.State == OperationFailed && r.Code == "":
		return RefusedByPSP
	case r.State == OperationDeclined, r.State == OperationFailed:
		return r.Code
	}
	return ""
}

// clean makes of a result what the table takes: its texts come from outside.
func (r Result) clean() Result {
	if !r.State.Ended() {
		r.State = Unknown
	}
	r.Reference, r.Error, r.Code = clean(r.Reference), clean(r.Error), Code(clean(string(r.Code)))
	r.ResolvedBy = clean(r.ResolvedBy)
	return r
}

func clean(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "")
	if runes := []rune(s); len(runes) > maxText {
		s = string(runes[:maxText])
	}
	return s
}

const maxText = 500 // characters: a PSP's message is no place for a page of HTML

// forOperator returns what is written in the place of r if an operator has to look.
func (r Result) forOperator(why string) Result {
	r.State, r.AskOperator, r.Error = Unknown, true, clean(why)
	return r
}

package payments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
)

// Result is what became of an operation, as the PSP, its webhook or an operator says; or that it is
// not known.
type Result struct {
	OperationID uuid.UUID
	State       OperationState // one that has ended, or Unknown
	AmountMinor int64          // as the PSP executed it; zero: it does not say
	Currency    string         // with AmountMinor
	Reference   string         // the PSP's id
	Code        Code           // why it was declined or has failed
	ResolvedBy  string         // the operator; empty: the PSP

	// Of Unknown only.
	Token       int64         // of the claim
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
	Conflict                    // it ended otherwise, or the PSP moved another amount: it waits for an operator
	Stale                       // Unknown, from somebody whose claim is lost
	NoOperation                 // there is no such operation
	Unbookable                  // it ended, but a balance would overflow: it waits for an operator
	Locked                      // another session keeps its accounts: nothing was done, try again
)

// In the order of their ids, before payments and accounts: two transactions that settle the same
// operations cannot deadlock. A claim locks operations alone, and waits for none.
const lockOperations = `
SELECT o.id, o.tenant_id, o.payment_id, o.refund_id, o.kind, o.amount_minor, o.currency, o.state, o.token
FROM unnest($1::uuid[]) t(id) JOIN psp_operations o USING (id)
ORDER BY o.id FOR NO KEY UPDATE OF o`

const writeOperations = `
UPDATE psp_operations o SET state = t.state, reference = t.reference, code = t.code,
    last_error = t.last_error, resolved_by = t.resolved_by,
    ended_at = CASE WHEN t.state <> 'unknown' THEN clock_timestamp() END,
    tries = greatest(tries, 1), first_tried_at = coalesce(first_tried_at, clock_timestamp()),
    next_try_at = coalesce(clock_timestamp() + t.retry_after, 'infinity')
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::interval[])
  t(id, state, reference, code, last_error, resolved_by, retry_after)
WHERE o.id = t.id`

// Record writes down what became of operations, and ends their payments and refunds, in one
// transaction with ledger entries and events. An operation ends once. A result counts whoever brings
// it, since it is the truth about the operation's key; that the result is unknown counts only under
// the last claim. An error means that nothing was done, except for idempotency.ErrOutcomeUnknown:
// Record the same again.
func (p *Processor) Record(ctx context.Context, results []Result) ([]Recorded, error) {
	var recorded []Recorded
	attempt := func(ctx context.Context, tx pgx.Tx) (_ []idempotency.Answer, err error) {
		recorded, err = p.settle(ctx, tx, results)
		return nil, err
	}

	for dayMade := false; ; {
		_, err := idempotency.CommitOnce(ctx, p.DB, attempt)

		var blocked *blockedError
		switch {
		case err == nil:
			return recorded, nil
		case !dayMade && outbox.MissingDay(err):
			dayMade = true
			_, err = outbox.MakePartitions(ctx, p.DB)
		case errors.As(err, &blocked): // run again without what needs that account
			err = p.hold(ctx, blocked)
		}
		if err != nil {
			return nil, fmt.Errorf("record PSP results: %w", err)
		}
	}
}

func (p *Processor) settle(ctx context.Context, tx pgx.Tx, results []Result) ([]Recorded, error) {
	operations, err := p.lockOperations(ctx, tx, results)
	if err != nil {
		return nil, err
	}

	// Decided in turn, each on what the ones before left behind. Only the first that ends an operation
	// goes to the books.
	recorded := make([]Recorded, len(results))
	last := map[uuid.UUID]int{} // by operation: the result that is written
	var ends []Request
	var places []int
	for i, r := range results {
		o, found := operations[r.OperationID]
		if !found {
			recorded[i] = NoOperation
			continue
		}

		ended := o.State.Ended()
		recorded[i] = judge(o, r)
		switch {
		case recorded[i] == Applied && r.State.Ended():
			o.State = r.State
			ends, places = append(ends, settlementOf(o, r)), append(places, i)
			last[o.ID] = i
		case recorded[i] == Applied, recorded[i] == Conflict && !ended:
			last[o.ID] = i
		default: // nothing to write
		}
	}

	if err := p.book(ctx, tx, ends, places, recorded); err != nil {
		return nil, err
	}
	for i, r := range results { // what repeats the one that could not be booked was not done either
		if j, found := last[r.OperationID]; found && recorded[i] == Repeated && recorded[j] != Applied {
			recorded[i] = recorded[j]
		}
	}
	return recorded, updateOperations(ctx, tx, results, last, recorded)
}

// judge says what a result means for an operation.
func judge(o *Operation, r Result) Recorded {
	moved := r.State == Succeeded && r.AmountMinor != 0
	other := moved && (r.AmountMinor != o.AmountMinor || r.Currency != o.Currency)

	switch {
	case o.State.Ended() && r.State == Unknown:
		return Stale
	case o.State.Ended() && (r.State != o.State || other):
		return Conflict
	case o.State.Ended():
		return Repeated
	case other:
		return Conflict
	case r.State == Unknown && r.Token != o.Token:
		return Stale
	}
	return Applied
}

func settlementOf(o *Operation, r Result) Request {
	c := settlePayment{
		Target: Target{PaymentID: o.PaymentID}, RefundID: o.RefundID, State: r.State, Code: r.code(),
	}
	q := Request{Command: c}
	q.TenantID = o.TenantID
	return q
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

// book ends the payments and refunds in the ledger, with their events. What it cannot do is in
// recorded afterwards.
func (p *Processor) book(
	ctx context.Context, tx pgx.Tx, rs []Request, places []int, recorded []Recorded,
) error {
	answers := make([]idempotency.Answer, len(recorded))
	rs, places, err := p.setApart(ctx, tx, rs, places, answers)
	if err != nil {
		return err
	}
	for i, a := range answers {
		if a.State == idempotency.Busy {
			recorded[i] = Locked
		}
	}
	if len(rs) == 0 {
		return nil
	}

	outcomes, err := Execute(ctx, tx, rs)
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		switch {
		case o.Refusal == nil:
		case o.Refusal.Code == AmountOutOfRange:
			recorded[places[i]] = Unbookable
		default:
			target, _ := targetOf(rs[i].Command)
			return fmt.Errorf("%w: payment %s does not wait for its operation: %s",
				ErrDamaged, target.PaymentID, o.Refusal.Code)
		}
	}
	return outbox.Append(ctx, tx, eventsOf(rs, outcomes))
}

func (p *Processor) lockOperations(
	ctx context.Context, tx pgx.Tx, results []Result,
) (map[uuid.UUID]*Operation, error) {
	seen := map[uuid.UUID]bool{}
	var ids [][16]byte
	for _, r := range results {
		if !seen[r.OperationID] {
			ids = append(ids, r.OperationID)
		}
		seen[r.OperationID] = true
	}

	rows, err := tx.Query(ctx, lockOperations, ids)
	if err != nil {
		return nil, fmt.Errorf("lock operations: %w", err)
	}
	operations := make(map[uuid.UUID]*Operation, len(ids))
	for rows.Next() {
		o := &Operation{}
		err := rows.Scan(&o.ID, &o.TenantID, &o.PaymentID, &o.RefundID, &o.Kind, &o.AmountMinor,
			&o.Currency, &o.State, &o.Token)
		if err != nil {
			return nil, fmt.Errorf("lock operations: %w", err)
		}
		operations[o.ID] = o
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("lock operations: %w", err)
	}
	return operations, nil
}

// updateOperations writes the last result of each operation.
func updateOperations(
	ctx context.Context, tx pgx.Tx, results []Result, last map[uuid.UUID]int, recorded []Recorded,
) error {
	n := len(last)
	ids, states := make([][16]byte, 0, n), make([]string, 0, n)
	references, codes := make([]string, 0, n), make([]string, 0, n)
	errs, resolvers := make([]string, 0, n), make([]string, 0, n)
	retryAfter := make([]*time.Duration, 0, n)

	for id, i := range last {
		r := results[i]
		switch recorded[i] {
		case Locked:
			continue
		case Unbookable:
			r.Error = fmt.Sprintf("the PSP says %s, but a balance would overflow", r.State)
			r.State, r.AskOperator = Unknown, true
		case Conflict:
			r.Error = fmt.Sprintf("the PSP moved %d %s", r.AmountMinor, r.Currency)
			r.State, r.AskOperator = Unknown, true
		default:
		}
		var after *time.Duration
		if r.State == Unknown && !r.AskOperator {
			after = &r.RetryAfter
		}
		ids, states = append(ids, id), append(states, string(r.State))
		references, codes = append(references, r.Reference), append(codes, string(r.code()))
		errs, resolvers = append(errs, r.Error), append(resolvers, r.ResolvedBy)
		retryAfter = append(retryAfter, after)
	}
	if len(ids) == 0 {
		return nil
	}

	_, err := tx.Exec(ctx, writeOperations, ids, states, references, codes, errs, resolvers, retryAfter)
	if err != nil {
		return fmt.Errorf("update operations: %w", err)
	}
	return nil
}

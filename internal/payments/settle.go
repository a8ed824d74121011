package payments

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	Locked                      // another session keeps a row that it needs: nothing was done, try again
)

// In the order of their ids, before payments and accounts: two transactions that settle the same
// operations cannot deadlock. A claim locks operations alone, and waits for none.
const lockOperations = `
SELECT o.id, o.tenant_id, o.payment_id, o.refund_id, o.kind, o.amount_minor, o.currency, o.state, o.token
FROM unnest($1::uuid[]) t(id) JOIN psp_operations o USING (id)
ORDER BY o.id FOR NO KEY UPDATE OF o`

// The same without those that another session keeps.
const lockFreeOperations = lockOperations + ` SKIP LOCKED`

const selectOperationIDs = `
SELECT id FROM psp_operations WHERE id = ANY ($1::uuid[])`

// What waits for an operator has no claim any more: the call of the last one may still fail, and must
// not make it due again.
const writeOperations = `
UPDATE psp_operations o SET state = t.state, code = t.code, last_error = t.last_error,
    reference = coalesce(nullif(t.reference, ''), o.reference), resolved_by = t.resolved_by,
    ended_at = CASE WHEN t.state <> 'unknown' THEN clock_timestamp() END,
    tries = greatest(tries, 1), first_tried_at = coalesce(first_tried_at, clock_timestamp()),
    token = o.token + CASE WHEN t.state = 'unknown' AND t.retry_after IS NULL THEN 1 ELSE 0 END,
    next_try_at = coalesce(clock_timestamp() + t.retry_after, 'infinity')
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::interval[])
  t(id, state, reference, code, last_error, resolved_by, retry_after)
WHERE o.id = t.id`

// Record writes down what became of operations, and ends their payments and refunds, in one
// transaction with ledger entries and events. An operation ends once. A result counts whoever brings
// it, since it is the truth about the operation's key; that the result is unknown counts only under
// the last claim. An error means that nothing was done, except for idempotency.ErrOutcomeUnknown:
// Record the same again. If OneIsToBlame, record each alone: then the one is Unbookable.
func (p *Processor) Record(ctx context.Context, results []Result) ([]Recorded, error) {
	recorded, err := p.record(ctx, results, nil)
	if len(results) == 1 && OneIsToBlame(err) {
		recorded, err = p.record(ctx, results, err)
	}
	if err != nil {
		return nil, fmt.Errorf("record PSP results: %w", err)
	}
	return recorded, nil
}

// record leaves the books alone if they are known to be damaged: the operations wait for an operator.
func (p *Processor) record(
	ctx context.Context, results []Result, damage error,
) ([]Recorded, error) {
	s := settlement{results: results, damage: damage}
	attempt := func(ctx context.Context, tx pgx.Tx) ([]idempotency.Answer, error) {
		return nil, p.settle(ctx, tx, &s)
	}

	for dayMade := false; ; {
		_, err := idempotency.CommitOnce(ctx, p.DB, attempt)

		var blocked *blockedError
		switch {
		case err == nil:
			p.freeOne(ctx, s.locked)
			return s.recorded, nil
		case errors.Is(err, errOperationKept): // run again without it
			s.skipKept, err = true, nil
		case !dayMade && outbox.MissingDay(err):
			dayMade = true
			_, err = outbox.MakePartitions(ctx, p.DB)
		case errors.As(err, &blocked): // run again without what needs that account
			err = p.hold(ctx, blocked)
		}
		if err != nil {
			return nil, err
		}
	}
}

// freeOne forgets a row that kept one of rs from being settled, once it is free. Other results find it
// held until then. Like Await, it queues for the row, and one caller does so at a time.
func (p *Processor) freeOne(ctx context.Context, rs []Request) {
	for _, r := range rs {
		if needed, found := p.held.of(r); found && p.held.watch(needed) {
			p.held.unwatch(needed, p.free(ctx, needed))
			return
		}
	}
}

// settlement is what becomes of results.
type settlement struct {
	results  []Result
	damage   error // of the books
	skipKept bool  // an operation is kept by another session

	// Of one attempt.
	recorded []Recorded
	written  []Result          // as they are written: some wait for an operator instead
	last     map[uuid.UUID]int // by operation: the one that is written
	locked   []Request         // what Locked results ask for
}

func (p *Processor) settle(ctx context.Context, tx pgx.Tx, s *settlement) error {
	s.recorded, s.written = make([]Recorded, len(s.results)), make([]Result, len(s.results))
	s.last, s.locked = map[uuid.UUID]int{}, nil

	operations, kept, err := p.lockOperations(ctx, tx, s)
	if err != nil {
		return err
	}

	// Decided in turn, each on what the ones before left behind. Only the first that ends an operation
	// goes to the books.
	var ends []Request
	var places []int
	for i, r := range s.results {
		r = r.clean()
		o, found := operations[r.OperationID]
		switch {
		case kept[r.OperationID]:
			s.recorded[i] = Locked
			continue
		case !found:
			s.recorded[i] = NoOperation
			continue
		}

		ended := o.State.Ended()
		s.recorded[i], s.written[i] = judge(o, r), r
		switch {
		case s.recorded[i] == Applied && r.State.Ended():
			o.State = r.State
			ends, places = append(ends, settlementOf(o, r)), append(places, i)
			s.last[o.ID] = i
		case s.recorded[i] == Applied:
			s.last[o.ID] = i
		case s.recorded[i] == Conflict && !ended:
			s.written[i] = r.forOperator(fmt.Sprintf("the PSP moved %d %s", r.AmountMinor, r.Currency))
			s.last[o.ID] = i
		default: // nothing to write
		}
		if s.written[i].AskOperator {
			o.Token = 0 // no claim any more, as in writeOperations
		}
	}

	if err := p.book(ctx, tx, s, ends, places); err != nil {
		return err
	}
	for i, r := range s.results { // what repeats the one that could not be booked was not done either
		if j, found := s.last[r.OperationID]; found && s.recorded[i] == Repeated && s.recorded[j] != Applied {
			s.recorded[i] = s.recorded[j]
		}
	}
	return updateOperations(ctx, tx, s)
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
	case r.State == Unknown && (r.Token == 0 || r.Token != o.Token):
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

// book ends the payments and refunds in the ledger, with their events. What it cannot do is recorded
// afterwards.
func (p *Processor) book(
	ctx context.Context, tx pgx.Tx, s *settlement, rs []Request, places []int,
) error {
	unbookable := func(i int, why string) {
		s.recorded[i] = Unbookable
		s.written[i] = s.written[i].forOperator(
			fmt.Sprintf("the PSP says %s, but %s", s.written[i].State, why))
	}
	if s.damage != nil {
		for _, i := range places {
			unbookable(i, s.damage.Error())
		}
		return nil
	}

	answers, all := make([]idempotency.Answer, len(s.results)), slices.Clone(rs)
	free, freePlaces, err := p.setApart(ctx, tx, rs, slices.Clone(places), answers)
	if err != nil {
		return err
	}
	for n, i := range places {
		if answers[i].State == idempotency.Busy {
			s.recorded[i], s.locked = Locked, append(s.locked, all[n])
		}
	}
	if len(free) == 0 {
		return nil
	}

	outcomes, err := Execute(ctx, tx, free)
	if err != nil {
		return err
	}
	for n, o := range outcomes {
		switch {
		case o.Refusal == nil:
		case o.Refusal.Code == AmountOutOfRange:
			unbookable(freePlaces[n], "a balance would overflow")
		default:
			target, _ := targetOf(free[n].Command)
			return fmt.Errorf("%w: payment %s does not wait for its operation: %s",
				ErrDamaged, target.PaymentID, o.Refusal.Code)
		}
	}
	return outbox.Append(ctx, tx, eventsOf(free, outcomes))
}

// errOperationKept is an operation that another session keeps locked. It does not unwrap to the
// server's error, which CommitOnce would retry.
var errOperationKept = errors.New("an operation is locked by another session")

// lockOperations locks the operations that there are. Those of kept exist, but another session keeps
// them locked.
func (p *Processor) lockOperations(
	ctx context.Context, tx pgx.Tx, s *settlement,
) (operations map[uuid.UUID]*Operation, kept map[uuid.UUID]bool, err error) {
	seen := map[uuid.UUID]bool{}
	var ids [][16]byte
	for _, r := range s.results {
		if !seen[r.OperationID] {
			ids = append(ids, r.OperationID)
		}
		seen[r.OperationID] = true
	}

	operations, kept = make(map[uuid.UUID]*Operation, len(ids)), map[uuid.UUID]bool{}
	add := func(rows pgx.Rows) error {
		for rows.Next() {
			o := &Operation{}
			err := rows.Scan(&o.ID, &o.TenantID, &o.PaymentID, &o.RefundID, &o.Kind, &o.AmountMinor,
				&o.Currency, &o.State, &o.Token)
			if err != nil {
				return err
			}
			operations[o.ID] = o
		}
		return rows.Err()
	}

	var batch pgx.Batch
	if s.skipKept {
		batch.Queue(lockFreeOperations, ids).Query(add)
		batch.Queue(selectOperationIDs, ids).Query(func(rows pgx.Rows) error {
			var id uuid.UUID
			_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
				kept[id] = operations[id] == nil
				return nil
			})
			return err
		})
	} else {
		batch.Queue(lockPatience)
		batch.Queue(lockOperations, ids).Query(add)
		batch.Queue(lockDefault)
	}
	err = tx.SendBatch(ctx, &batch).Close()
	switch {
	case timedOut(err):
		return nil, nil, errOperationKept
	case err != nil:
		return nil, nil, fmt.Errorf("lock operations: %w", err)
	}
	return operations, kept, nil
}

// updateOperations writes the last result of each operation.
func updateOperations(ctx context.Context, tx pgx.Tx, s *settlement) error {
	n := len(s.last)
	ids, states := make([][16]byte, 0, n), make([]string, 0, n)
	references, codes := make([]string, 0, n), make([]string, 0, n)
	errs, resolvers := make([]string, 0, n), make([]string, 0, n)
	retryAfter := make([]*time.Duration, 0, n)

	for id, i := range s.last {
		r := s.written[i]
		if s.recorded[i] == Locked {
			continue
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

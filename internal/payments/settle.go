package payments

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
)

// Record writes down what became of operations, and ends their payments and refunds, in one
// transaction with ledger entries and events. An operation ends once.
//
// A result that the money moved is the truth about the operation's key, so it counts from anyone. A
// worker's result that it did not move, or that the outcome is unknown, is about one try. It counts
// only under the last claim: since then another try may have been sent.
//
// An error means that nothing was done, except for idempotency.ErrOutcomeUnknown: Record the same
// again. If OneIsToBlame, record each alone: then that one is Unbookable.
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

// settlement is the work on a batch of results.
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
			o.State, o.Reference = r.State, r.Reference
			ends, places = append(ends, settlementOf(o, r)), append(places, i)
			s.last[o.ID] = i
		case s.recorded[i] == Applied:
			s.last[o.ID] = i
		case s.recorded[i] == Conflict && !ended:
			s.written[i] = r.forOperator(fmt.Sprintf("the PSP says %s %s of %d %s",
				cmp.Or(r.Kind, o.Kind), r.State, r.AmountMinor, r.Currency))
			s.last[o.ID] = i
		default: // nothing to write
		}
		if j, writes := s.last[o.ID]; writes && j == i && s.written[i].AskOperator {
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

func settlementOf(o *Operation, r Result) Request {
	c := settlePayment{
		Target: Target{PaymentID: o.PaymentID}, RefundID: o.RefundID, State: r.State, Code: r.code(),
	}
	q := Request{Command: c}
	q.TenantID = o.TenantID
	if o.Traceparent != "" {
		q.Headers = map[string]string{"traceparent": o.Traceparent}
	}
	return q
}

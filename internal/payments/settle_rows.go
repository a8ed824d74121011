package payments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// In the order of their ids, before payments and accounts: two transactions that settle the same
// operations cannot deadlock. A claim locks operations alone, and waits for none.
const lockOperations = `
SELECT o.id, o.tenant_id, o.payment_id, o.refund_id, o.kind, o.amount_minor, o.currency, o.state,
    o.token, o.reference, coalesce(o.traceparent, '')
FROM unnest($1::uuid[]) t(id) JOIN psp_operations o USING (id)
WHERE (o.ended_at IS NOT NULL OR o.` + hasNotLeft + `)
ORDER BY o.id FOR NO KEY UPDATE OF o`

// The same without those that another session keeps.
const lockFreeOperations = lockOperations + ` SKIP LOCKED`

const selectOperationIDs = `
SELECT id FROM psp_operations
WHERE id = ANY ($1::uuid[]) AND (ended_at IS NOT NULL OR ` + hasNotLeft + `)`

// errOperationKept is an operation that another session keeps locked. It does not unwrap to the
// server's error, which CommitOnce would retry.
var errOperationKept = errors.New("an operation is locked by another session")

// lockOperations locks the operations that there are, but no open one of a tenant that has left. Those
// of kept exist, but another session keeps them locked.
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
				&o.Currency, &o.State, &o.Token, &o.Reference, &o.Traceparent)
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

package payments

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// The longest due first, by psp_operations_due. A claim makes the state unknown before the call: from
// its commit on, the row cannot say whether the PSP was reached. It ends with its lease, so what
// a worker leaves behind when it dies is claimed again; its late answer still counts, see Record.
// Those of a tenant that has left are not ours, see hasNotLeft. now() is stable, for the index; a
// claim takes one moment, so it is late by nothing that matters.
const (
	claimOperations = claimDue + claimThem

	// The same of what became due lately: see claims.
	claimRecentOperations = claimDue + `
      AND next_try_at >= $3` + claimThem

	claimDue = `
WITH due AS MATERIALIZED (
    SELECT id, state, next_try_at FROM psp_operations
    WHERE state IN ('pending', 'unknown') AND next_try_at <= now() AND ` + hasNotLeft

	claimThem = `
    ORDER BY next_try_at LIMIT $1
    FOR NO KEY UPDATE SKIP LOCKED)
UPDATE psp_operations o SET state = 'unknown', tries = tries + 1, token = token + 1,
    first_tried_at = coalesce(first_tried_at, now()), next_try_at = now() + $2::interval
FROM due WHERE o.id = due.id
RETURNING due.next_try_at, o.id, o.tenant_id, o.payment_id, o.refund_id, o.kind, o.amount_minor,
    o.currency, o.card_token, due.state, o.tries, o.token, now() - o.created_at, o.created_at,
    coalesce(o.traceparent, ''), coalesce((SELECT c.reference FROM psp_operations c
              WHERE o.kind = 'refund' AND c.payment_id = o.payment_id AND c.kind = 'charge'), '')`
)

const selectClaimTime = `
SELECT now()`

// ClaimOperations returns up to limit operations that are due. For the length of lease no other call
// claims them. The claim is committed: call the PSP, then Record what it said. An error means that
// nothing may be sent; what was claimed nevertheless is due again when the lease is over.
func (p *Processor) ClaimOperations(
	ctx context.Context, limit int, lease time.Duration,
) ([]Operation, error) {
	var claimed []Operation
	var last, now time.Time // when the last of them became due
	from, began := p.claims.start(), time.Now()
	statement, args := claimOperations, []any{limit, lease}
	if from != nil {
		statement, args = claimRecentOperations, append(args, *from)
	}

	attempt := func(ctx context.Context, tx pgx.Tx) ([]idempotency.Answer, error) {
		claimed, last = nil, time.Time{}
		var batch pgx.Batch
		batch.Queue(statement, args...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var o Operation
				var due time.Time
				if err := rows.Scan(append([]any{&due}, o.columns()...)...); err != nil {
					return err
				}
				claimed = append(claimed, o)
				if due.After(last) {
					last = due
				}
			}
			return rows.Err()
		})
		batch.Queue(selectClaimTime).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		return nil, tx.SendBatch(ctx, &batch).Close()
	}

	// CommitOnce never cancels a COMMIT, which a failover could take back after the call.
	if _, err := idempotency.CommitOnce(ctx, p.DB, attempt); err != nil {
		return nil, fmt.Errorf("claim PSP operations: %w", err)
	}

	if len(claimed) == limit { // later ones may be due as well
		now = last
	}
	p.claims.done(from == nil, now, time.Since(began))
	return claimed, nil
}

// columns returns where to scan what claimOperations returns of an operation.
func (o *Operation) columns() []any {
	return []any{&o.ID, &o.TenantID, &o.PaymentID, &o.RefundID, &o.Kind, &o.AmountMinor, &o.Currency,
		&o.CardToken, &o.State, &o.Tries, &o.Token, &o.Age, &o.CreatedAt, &o.Traceparent, &o.ChargeReference}
}

// claims is where the next claim starts in psp_operations_due. Its low end consists of entries of
// operations that are no longer due: dead until a vacuum, which a long transaction puts off. Read by
// every claim, a million of them would take longer than the claim itself.
type claims struct {
	mu     sync.Mutex
	from   time.Time // what became due before was claimed, by the database clock
	fullAt time.Time // when to look through all, by ours
}

const (
	// What becomes due is seen when its transaction commits, a little later.
	claimMargin = 15 * time.Second

	// What took longer, or was locked at the time, is found by a claim that looks through all. With
	// 500,000 dead entries that a long transaction keeps, that took 0.5 s on a busy machine, and 1 to 9
	// ms without them: so it has its share of the time, and if it fails the next ones look back only.
	fullClaimEvery  = time.Second
	fullClaimShare  = 20 // one part of so many
	fullClaimAgain  = 10 * time.Second
	fullClaimAtMost = time.Minute // a COMMIT that waits for its standby takes long as well
)

// start returns from when on to look for what is due. Nil: through all.
func (c *claims) start() *time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := time.Now()
	if now.After(c.fullAt) {
		c.fullAt = now.Add(fullClaimAgain) // unless it succeeds
		return nil
	}
	from := c.from
	if from.IsZero() { // the first one failed, or is under way
		from = now.Add(-4 * claimMargin)
	}
	return &from
}

// done notes that everything that became due before until was claimed.
func (c *claims) done(full bool, until time.Time, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if full {
		c.fullAt = time.Now().Add(max(fullClaimEvery, min(fullClaimShare*took, fullClaimAtMost)))
	}
	if !until.IsZero() {
		c.from = until.Add(-claimMargin)
	}
}

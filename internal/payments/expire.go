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

// The oldest first, by payments_expiring. now() is stable: a volatile clock would make the scan walk
// through all authorizations. SKIP LOCKED: what a capture or another sweep has locked is theirs, and
// a sweep that waits for no payment cannot deadlock, in whatever order it meets them. Accounts that
// somebody keeps locked are left for later, those of a tenant that moves to its next cluster.
const selectExpired = `
SELECT id, tenant_id FROM payments
WHERE status = 'authorized' AND authorization_expires_at <= now()
  AND source_account <> ALL($2::uuid[]) AND id <> ALL($3::uuid[])
  AND tenant_id <> ALL(ARRAY(SELECT m.tenant_id FROM tenant_moves m))
ORDER BY authorization_expires_at LIMIT $1
FOR NO KEY UPDATE SKIP LOCKED`

// ExpireBatch releases the holds of up to limit authorizations whose time is over, each with its
// event, and returns how many. Fewer than limit means that none is left, except locked ones, which
// the next call tries again. Any number of callers may run at once. An error costs nothing, not even
// idempotency.ErrOutcomeUnknown: what was not released is found again. If the error is about one
// payment, the others are released nevertheless.
func (p *Processor) ExpireBatch(ctx context.Context, limit int) (int, error) {
	_, released, err := p.expireBatch(ctx, limit)
	if !OneIsToBlame(err) {
		return released, err
	}

	// One by one, so that only what is damaged keeps its hold. It is left out until the others are
	// released; then it is tried, and reported, again.
	var damaged error
	for range limit {
		tried, n, err := p.expireBatch(ctx, 1)
		released += n
		switch {
		case OneIsToBlame(err) && len(tried) == 1:
			id := tried[0].Command.(expirePayment).PaymentID
			p.held.add(row{rowKey{id, tried[0].TenantID}, true})
			damaged = fmt.Errorf("payment %s: %w", id, err)
		case err != nil:
			return released, err
		case n == 0:
			return released, damaged
		}
	}
	return released, damaged
}

// expireBatch also returns the commands that it tried last.
func (p *Processor) expireBatch(
	ctx context.Context, limit int,
) (tried []Request, released int, err error) {
	// CommitOnce, although there is no key: it retries lost races and never cancels a COMMIT, which a
	// failover could take back after the relay has sent its events.
	attempt := func(ctx context.Context, tx pgx.Tx) (_ []idempotency.Answer, err error) {
		tried, released, err = p.expire(ctx, tx, limit)
		return nil, err
	}

	for dayMade := false; ; {
		_, err := idempotency.CommitOnce(ctx, p.DB, attempt)

		var blocked *blockedError
		switch {
		case err == nil:
			if released < limit {
				p.held.clear()
			}
			return tried, released, nil
		case !dayMade && outbox.MissingDay(err):
			dayMade = true
			_, err = outbox.MakePartitions(ctx, p.DB)
		case errors.As(err, &blocked):
			err = p.hold(ctx, blocked)
		}
		if err != nil {
			return tried, 0, fmt.Errorf("expire authorizations: %w", err)
		}
	}
}

func (p *Processor) expire(
	ctx context.Context, tx pgx.Tx, limit int,
) (rs []Request, released int, err error) {
	rs, err = p.expired(ctx, tx, limit)
	if err != nil || len(rs) == 0 {
		return rs, 0, err
	}
	outcomes, err := Execute(ctx, tx, rs)
	if err != nil {
		return rs, 0, err
	}

	events := eventsOf(rs, outcomes)
	return rs, len(events), outbox.Append(ctx, tx, events)
}

// expired locks payments whose time is over, and returns the command for each.
func (p *Processor) expired(ctx context.Context, tx pgx.Tx, limit int) ([]Request, error) {
	accounts, payments := p.held.ids()
	rows, err := tx.Query(ctx, selectExpired, limit, accounts, payments)
	if err != nil {
		return nil, fmt.Errorf("find expired authorizations: %w", err)
	}

	var rs []Request
	var id, tenant uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id, &tenant}, func() error {
		r := Request{Command: expirePayment{Target{PaymentID: id}}}
		r.TenantID = tenant
		rs = append(rs, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find expired authorizations: %w", err)
	}
	return rs, nil
}

// Uses payments_expiring. Without tenants that move, whose holds are not released here: see
// selectExpired.
const selectOldestOverdue = `
SELECT greatest(now() - authorization_expires_at, '0') FROM payments
WHERE status = 'authorized'
  AND tenant_id <> ALL(ARRAY(SELECT m.tenant_id FROM tenant_moves m))
ORDER BY authorization_expires_at LIMIT 1`

// OldestOverdue returns for how long the oldest authorization that is over has kept its hold. Zero
// means that none is over.
func OldestOverdue(ctx context.Context, db idempotency.Querier) (age time.Duration, err error) {
	err = db.QueryRow(ctx, selectOldestOverdue).Scan(&age)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("find the oldest authorization that is over: %w", err)
	}
	return age, nil
}

// By payments_expiring; more than 1,000 need not be told apart.
const countOverdue = `
SELECT count(*), min(authorization_expires_at) FROM (
    SELECT authorization_expires_at FROM payments
    WHERE status = 'authorized' AND authorization_expires_at <= now()
      AND tenant_id <> ALL(ARRAY(SELECT m.tenant_id FROM tenant_moves m))
    ORDER BY authorization_expires_at LIMIT 1000) o`

// CountOverdue returns how many authorizations are over and keep their holds, at most 1,000, and
// when the first of them was over.
func CountOverdue(ctx context.Context, db idempotency.Querier) (n int64, first time.Time, err error) {
	var since *time.Time
	if err := db.QueryRow(ctx, countOverdue).Scan(&n, &since); err != nil {
		return 0, first, fmt.Errorf("count authorizations that are over: %w", err)
	}
	if since != nil {
		first = *since
	}
	return n, first, nil
}

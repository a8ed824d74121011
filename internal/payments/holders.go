package payments

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// Advanced, like await.go, which uses it.

// Who keeps the rows, as far as Postgres shows: a row that is locked or was changed names its
// transaction in xmax, unless several sessions share it. kept is false while that transaction is one
// of ours and at work: it waits for its COMMIT, or did something within the last 500 ms. After 5 s
// it is as good as lost: its instance no longer waits for a COMMIT either. A prepared transaction
// has no session.
//
// Ids of rows that do not exist drop out.
const holders = `
WITH holders AS MATERIALIZED (
    SELECT l.transactionid, coalesce(s.usename <> current_user
        OR s.xact_start < clock_timestamp() - interval '5 s'
        OR s.state <> 'active' AND s.state_change < clock_timestamp() - interval '500 ms', true) AS kept
    FROM pg_locks l LEFT JOIN pg_stat_activity s ON s.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.granted)
SELECT r.id, r.tenant_id, h.kept
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)`

// Uses accounts_pkey.
const findAccountHolders = holders + `
JOIN accounts r ON r.id = t.id AND r.tenant_id = t.tenant_id
LEFT JOIN holders h ON h.transactionid = r.xmax
ORDER BY r.id`

// Uses payments_pkey.
const findPaymentHolders = holders + `
JOIN payments r ON r.id = t.id AND r.tenant_id = t.tenant_id
LEFT JOIN holders h ON h.transactionid = r.xmax
ORDER BY r.id`

// hold records which rows of a blocked batch other sessions keep locked. The batch waited for the
// first, which counts as held if no holder is visible, twice. The others are held if one is: an operator may
// have locked thousands, and learning them one by one would take 200 ms each.
func (p *Processor) hold(ctx context.Context, blocked *blockedError) error {
	keys, payment := blocked.accounts, blocked.payments != nil
	if payment {
		keys = blocked.payments
	}

	kept, sure, err := p.keptOf(ctx, keys, payment)
	if err == nil && !sure {
		// Perhaps the row just passed from one transaction to the next. Queue for it once more.
		if err = p.lock(ctx, row{kept[0], payment}); err == nil {
			return nil
		}
		if timedOut(err) {
			kept, _, err = p.keptOf(ctx, keys, payment)
		}
	}
	if err != nil {
		return fmt.Errorf("find who locked the row (%w): %w", blocked.cause, err)
	}

	for _, key := range kept {
		p.held.add(row{key, payment})
		if p.OnHeld != nil {
			p.OnHeld(key.id)
		}
	}
	return nil
}

// keptOf returns those of the accounts, or payments, that other sessions keep locked. The first that
// exists is one of them unless our own transactions have it. If no holder of it is visible, the
// answer is not sure.
func (p *Processor) keptOf(
	ctx context.Context, keys []rowKey, payments bool,
) (kept []rowKey, sure bool, err error) {
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, false, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	statement := findAccountHolders
	if payments {
		statement = findPaymentHolders
	}
	ids, tenants := arraysOf(keys)
	rows, err := tx.Query(ctx, statement, ids, tenants)
	if err != nil {
		return nil, false, err
	}

	var key rowKey
	var seen *bool
	first := true
	sure = true
	columns := []any{(*[16]byte)(&key.id), (*[16]byte)(&key.tenant), &seen}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		if seen != nil && *seen || seen == nil && first {
			kept = append(kept, key)
		}
		if first && seen == nil {
			sure = false
		}
		first = false
		return nil
	})
	return kept, sure, err
}

const selectAccountsOfPayments = `
SELECT p.id, p.tenant_id, p.source_account, p.destination_account
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN payments p USING (tenant_id, id)`

// setApart answers Busy to those of fresh that need a held row, and returns the others with their
// places.
func (p *Processor) setApart(
	ctx context.Context, tx pgx.Tx, fresh []Request, places []int, answers []idempotency.Answer,
) ([]Request, []int, error) {
	if p.held.none() {
		return fresh, places, nil
	}
	if err := p.learnAccounts(ctx, tx, p.held.unknown(paymentsOf(fresh))); err != nil {
		return nil, nil, err
	}

	n := 0
	for i, r := range fresh {
		if _, found := p.held.of(r); found {
			answers[places[i]] = idempotency.Answer{State: idempotency.Busy}
			continue
		}
		fresh[n], places[n] = r, places[i]
		n++
	}
	return fresh[:n], places[:n], nil
}

// learnAccounts finds out which accounts commands about these payments lock.
func (p *Processor) learnAccounts(ctx context.Context, tx pgx.Tx, payments []rowKey) error {
	if len(payments) == 0 {
		return nil
	}

	ids, tenants := arraysOf(payments)
	rows, err := tx.Query(ctx, selectAccountsOfPayments, ids, tenants)
	if err != nil {
		return fmt.Errorf("find accounts of payments: %w", err)
	}

	var key rowKey
	var source, destination uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&key.id, &key.tenant, &source, &destination}, func() error {
		p.held.learn(key, []rowKey{{source, key.tenant}, {destination, key.tenant}})
		return nil
	})
	if err != nil {
		return fmt.Errorf("find accounts of payments: %w", err)
	}
	return nil
}

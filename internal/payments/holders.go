package payments

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// Advanced, like await.go, which uses it.

// Who keeps the accounts, as far as Postgres shows: a row that is locked or was changed names its
// transaction in xmax, unless several sessions share it. kept is false while that transaction is one
// of ours and at work: it waits for its COMMIT, or did something within the last 200 ms. After 5 s
// it is as good as lost: its instance no longer waits for a COMMIT either.
//
// Uses accounts_pkey. Ids of accounts that do not exist drop out.
const findHolders = `
WITH holders AS MATERIALIZED (
    SELECT l.transactionid, coalesce(s.usename <> current_user
        OR s.xact_start < clock_timestamp() - interval '5 s'
        OR s.state <> 'active' AND s.state_change < clock_timestamp() - interval '200 ms', true) AS kept
    FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.granted)
SELECT a.id, a.tenant_id, h.kept
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN accounts a ON a.id = t.id AND a.tenant_id = t.tenant_id
LEFT JOIN holders h ON h.transactionid = a.xmax
ORDER BY a.id`

// hold records which accounts of a blocked batch other sessions keep locked. The batch waited for the
// first, which counts as held if no holder is visible. The others are held if one is: an operator may
// have locked thousands, and learning them one by one would take 200 ms each.
func (p *Processor) hold(ctx context.Context, blocked *blockedError) error {
	kept, err := p.keptOf(ctx, blocked.accounts)
	if err != nil {
		return fmt.Errorf("find the locked account (%w): %w", blocked.cause, err)
	}

	for _, a := range kept {
		p.held.add(a)
		if p.OnHeld != nil {
			p.OnHeld(a.id)
		}
	}
	return nil
}

// keptOf returns those of accounts that other sessions keep locked. The first that exists is one of
// them unless our own transactions have it.
func (p *Processor) keptOf(ctx context.Context, accounts []accountKey) ([]accountKey, error) {
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	ids, tenants := arraysOf(accounts)
	rows, err := tx.Query(ctx, findHolders, ids, tenants) // ForEachRow returns it
	if err != nil {
		return nil, err
	}

	var kept []accountKey
	var a accountKey
	var seen *bool
	first := true
	row := []any{(*[16]byte)(&a.id), (*[16]byte)(&a.tenant), &seen}
	_, err = pgx.ForEachRow(rows, row, func() error {
		if seen != nil && *seen || seen == nil && first {
			kept = append(kept, a)
		}
		first = false
		return nil
	})
	return kept, err
}

// setApart answers Busy to those of fresh that need a held account, and returns the others with
// their places.
func (p *Processor) setApart(
	fresh []Request, places []int, answers []idempotency.Answer,
) ([]Request, []int) {
	n := 0
	for i, r := range fresh {
		if _, found := p.held.of(r); found {
			answers[places[i]] = idempotency.Answer{State: idempotency.Busy}
			continue
		}
		fresh[n], places[n] = r, places[i]
		n++
	}
	return fresh[:n], places[:n]
}

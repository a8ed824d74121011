package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// books is what there is of each thing that a payment leaves behind.
type books struct{ payments, keys, events, entries int64 }

const countBooks = `
SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM ledger_entries)`

// A key that took effect twice.
const doublePayments = `
SELECT count(*) FROM (SELECT FROM payments GROUP BY tenant_id, client_id, idempotency_key HAVING count(*) > 1) twice`

// A completed payment has two entries, its amount from the source and to the destination; a declined one has none.
const unbalancedPayments = `
SELECT count(*) FROM (
  SELECT FROM payments p FULL JOIN ledger_entries e ON e.payment_id = p.id
  GROUP BY coalesce(e.payment_id, p.id)
  HAVING (CASE min(p.status)
    WHEN 'completed' THEN count(*) = 2
      AND count(*) FILTER (WHERE e.account_id = p.source_account AND e.amount_minor = -p.amount_minor) = 1
      AND count(*) FILTER (WHERE e.account_id = p.destination_account AND e.amount_minor = p.amount_minor) = 1
    WHEN 'declined' THEN count(e.id) = 0
  END) IS NOT TRUE) wrong`

// A balance is the sum of the account's entries, which are numbered without a gap.
const wrongBalances = `
SELECT count(*)
FROM accounts a
FULL JOIN (SELECT account_id, sum(amount_minor) AS sum, count(*) AS n, max(entry_no) AS last FROM ledger_entries GROUP BY 1) e ON e.account_id = a.id
WHERE (a.balance_minor = coalesce(e.sum, 0) AND a.entry_count = coalesce(e.n, 0) AND a.entry_count = coalesce(e.last, 0)
  AND (a.kind = 'system' OR a.balance_minor >= 0)) IS NOT TRUE`

func countAll(ctx context.Context, conn *pgx.Conn) (b books, err error) {
	if err := conn.QueryRow(ctx, countBooks).Scan(&b.payments, &b.keys, &b.events, &b.entries); err != nil {
		return b, fmt.Errorf("count the books: %w", err)
	}
	return b, nil
}

// checkBooks proves a rate: since before, there is one payment for each of the first answers, with its key, its event and two entries,
// and everything balances. internal/invariant looks at more, but needs topics, and here is no relay.
func checkBooks(ctx context.Context, conn *pgx.Conn, before books, first int) error {
	now, err := countAll(ctx, conn)
	if err != nil {
		return err
	}
	made := books{now.payments - before.payments, now.keys - before.keys, now.events - before.events, now.entries - before.entries}
	n := int64(first)
	if want := (books{n, n, n, 2 * n}); made != want {
		return fmt.Errorf("the books do not balance: %d first answers, but %d payments, %d keys, %d events and %d entries",
			n, made.payments, made.keys, made.events, made.entries)
	}
	var problems []error
	for what, query := range map[string]string{
		"keys with two payments": doublePayments, "payments without balanced entries": unbalancedPayments, "wrong balances": wrongBalances,
	} {
		var wrong int64
		if err := conn.QueryRow(ctx, query).Scan(&wrong); err != nil {
			return fmt.Errorf("count %s: %w", what, err)
		}
		if wrong > 0 {
			problems = append(problems, fmt.Errorf("the books do not balance: %d %s", wrong, what))
		}
	}
	return errors.Join(problems...)
}

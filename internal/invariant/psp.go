package invariant

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// PSPEntry is a charge or a refund in the PSP's books.
type PSPEntry struct {
	Kind            string // charge or refund
	Reference       string // the PSP's id
	ChargeReference string // of a refund: of what
	OperationID     string // as we gave it to the PSP; empty if we did not
	AmountMinor     int64
	Currency        string
	Declined        bool
}

func copyBooks(ctx context.Context, conn *pgx.Conn, entries []PSPEntry) error {
	columns := []string{
		"kind", "reference", "charge_reference", "operation_id", "amount_minor", "currency", "declined",
	}
	rows := pgx.CopyFromSlice(len(entries), func(i int) ([]any, error) {
		e := entries[i]
		return []any{
			e.Kind, e.Reference, e.ChargeReference, e.OperationID, e.AmountMinor, e.Currency, e.Declined,
		}, nil
	})

	if _, err := conn.CopyFrom(ctx, pgx.Identifier{"psp_books"}, columns, rows); err != nil {
		return fmt.Errorf("copy the PSP's books: %w", err)
	}
	return nil
}

const allOperations = `SELECT count(*) FROM psp_operations`

// A payment by card comes from the clearing account and has one charge, a refund of it one refund,
// and each has ended as its operation has. A refund that was declined at once, for lack of money, never
// went to the PSP. No operation belongs to anything else, but to a payment that was archived.
const operationsWrong = `
SELECT format('payment %s', p.id)
FROM payments p
LEFT JOIN psp_operations o ON o.payment_id = p.id AND o.kind = 'charge'
LEFT JOIN accounts a ON a.id = p.source_account
WHERE p.payment_method = 'card'
  AND (a.kind = 'clearing' AND (o.tenant_id, o.amount_minor, o.currency) = (p.tenant_id, p.amount_minor, p.currency)
    AND p.status = CASE o.state WHEN 'succeeded' THEN 'completed' WHEN 'pending' THEN 'processing' WHEN 'unknown' THEN 'processing' ELSE o.state END) IS NOT TRUE
UNION ALL
SELECT format('refund %s', r.id)
FROM refunds r
JOIN payments p ON p.id = r.payment_id
LEFT JOIN psp_operations o ON o.refund_id = r.id
WHERE p.payment_method = 'card' AND NOT (r.status = 'declined' AND r.settled_at IS NULL)
  AND ((o.tenant_id, o.payment_id, o.amount_minor, o.currency) = (r.tenant_id, r.payment_id, r.amount_minor, r.currency)
    AND r.status = CASE o.state WHEN 'succeeded' THEN 'completed' WHEN 'pending' THEN 'processing' WHEN 'unknown' THEN 'processing' ELSE o.state END) IS NOT TRUE
UNION ALL
SELECT format('operation %s', o.id)
FROM psp_operations o
LEFT JOIN payments p ON p.id = o.payment_id
LEFT JOIN refunds r ON r.id = o.refund_id
WHERE o.payment_id >= (SELECT first_id(books_begin()))
  AND (p.payment_method IS DISTINCT FROM 'card'
    OR o.kind = 'refund' AND (r.id IS NULL OR r.status = 'declined' AND r.settled_at IS NULL))`

const executed = `SELECT count(*) FROM psp_books WHERE NOT declined`

// The one thing that must never happen.
const chargedTwice = `
SELECT format('%s of operation %s', kind, operation_id)
FROM psp_books WHERE NOT declined AND operation_id <> ''
GROUP BY kind, operation_id HAVING count(*) > 1`

// Money moved that we do not know of, or not yet.
const chargedUnbooked = `
SELECT format('%s %s', b.kind, b.reference)
FROM psp_books b
LEFT JOIN psp_operations o ON o.id::text = b.operation_id AND o.kind = b.kind
WHERE NOT b.declined AND o.state IS DISTINCT FROM 'succeeded'`

const succeededOperations = `SELECT count(*) FROM psp_operations WHERE state = 'succeeded'`

// We say that money moved, and the PSP does not.
const bookedUncharged = `
SELECT format('operation %s', o.id)
FROM psp_operations o
WHERE o.state = 'succeeded'
  AND NOT EXISTS (SELECT FROM psp_books b WHERE b.operation_id = o.id::text AND b.kind = o.kind AND NOT b.declined)`

// To the minor unit. Of two charges of one operation, one must be ours.
const pspDiffers = `
SELECT format('operation %s', o.id)
FROM psp_operations o
JOIN psp_books b ON b.operation_id = o.id::text AND b.kind = o.kind AND NOT b.declined
LEFT JOIN psp_operations c ON o.kind = 'refund' AND c.payment_id = o.payment_id AND c.kind = 'charge'
WHERE o.state = 'succeeded'
GROUP BY o.id
HAVING NOT bool_or((b.reference, b.charge_reference, b.amount_minor, b.currency)
  IS NOT DISTINCT FROM (o.reference, coalesce(c.reference, ''), o.amount_minor, o.currency))`

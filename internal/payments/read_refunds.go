package payments

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const refundColumns = `id, payment_id, payment_version, status, decline_code, amount_minor, currency,
    source_account, destination_account, reason, metadata, processed_at, settled_at`

// By the primary key (tenant_id, id).
const selectRefund = `
SELECT ` + refundColumns + ` FROM refunds WHERE id = $1 AND tenant_id = $2`

// FindRefund returns a refund of the tenant, or ErrNotFound.
func FindRefund(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (Refund, error) {
	rows, err := tx.Query(ctx, selectRefund, id, tenant)
	if err != nil {
		return Refund{}, fmt.Errorf("find refund: %w", err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRefund)
	if err != nil {
		return Refund{}, fmt.Errorf("find refund: %w", notFound(err))
	}
	return r, nil
}

const selectOwnPayment = `SELECT id FROM payments WHERE id = $1 AND tenant_id = $2`

// By refunds_payment (payment_id, payment_version), backwards.
const selectRefunds = `
SELECT ` + refundColumns + ` FROM refunds
WHERE payment_id = $1 AND tenant_id = $2 AND payment_version < $3
ORDER BY payment_version DESC LIMIT $4`

// ListRefunds returns the refunds of a payment, newest first, that left it with a version below
// before. It returns ErrNotFound if the tenant has no such payment.
func ListRefunds(
	ctx context.Context, tx pgx.Tx, tenant, payment uuid.UUID, before int64, limit int,
) ([]Refund, error) {
	var own uuid.UUID
	if err := tx.QueryRow(ctx, selectOwnPayment, payment, tenant).Scan(&own); err != nil {
		return nil, fmt.Errorf("find payment: %w", notFound(err))
	}

	rows, err := tx.Query(ctx, selectRefunds, payment, tenant, before, limit)
	if err != nil {
		return nil, fmt.Errorf("list refunds: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanRefund)
	if err != nil {
		return nil, fmt.Errorf("list refunds: %w", err)
	}
	return found, nil
}

func scanRefund(row pgx.CollectableRow) (r Refund, err error) {
	err = row.Scan(r.columns()...)
	r.read()
	return r, err
}

// columns returns where to scan refundColumns to. Call read afterwards.
func (r *Refund) columns() []any {
	return []any{&r.ID, &r.PaymentID, &r.PaymentVersion, &r.Status, &r.DeclineCode, &r.AmountMinor,
		&r.Currency, &r.SourceAccount, &r.DestinationAccount, &r.Reason, &r.Metadata, &r.ProcessedAt,
		&r.SettledAt}
}

// read gives scanned columns the form that they had in the first answer.
func (r *Refund) read() {
	r.ProcessedAt = r.ProcessedAt.UTC()
	if r.SettledAt != nil {
		*r.SettledAt = r.SettledAt.UTC()
	}
}

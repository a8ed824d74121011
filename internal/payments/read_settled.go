package payments

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Unsettled reports whether the PSP's result on the payment, or on a refund of it, is not recorded yet.
func (p Payment) Unsettled() bool { return p.Status == Processing || p.RefundingMinor > 0 }

// Unsettled reports whether the PSP's result is not recorded yet.
func (r Refund) Unsettled() bool { return r.Status == Processing }

// By the primary keys (tenant_id, id), one look-up for each id: with id = ANY, Postgres would read all
// of the tenant's payments where it expects few.
const selectSettled = `
SELECT wanted FROM unnest($2::uuid[]) t(wanted) CROSS JOIN LATERAL (
    SELECT FROM payments
    WHERE tenant_id = $1 AND id = wanted AND status <> 'processing' AND refunding_minor = 0 LIMIT 1) p
UNION ALL
SELECT wanted FROM unnest($2::uuid[]) t(wanted) CROSS JOIN LATERAL (
    SELECT FROM refunds WHERE tenant_id = $1 AND id = wanted AND status <> 'processing' LIMIT 1) r`

// FindSettled returns those ids of the tenant's payments and refunds that are not Unsettled.
func FindSettled(
	ctx context.Context, tx pgx.Tx, tenant uuid.UUID, ids []uuid.UUID,
) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, selectSettled, tenant, ids)
	if err != nil {
		return nil, fmt.Errorf("find settled payments: %w", err)
	}
	settled, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("find settled payments: %w", err)
	}
	return settled, nil
}

package traffic

import (
	"context"
	"maps"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
)

// ReadBooks returns all charges and refunds that the PSP has, as its API shows them to us. The result
// is never nil: to the count, no books at all are another thing than empty ones.
func ReadBooks(ctx context.Context, client *psp.Client) ([]invariant.PSPEntry, error) {
	return NewBooks(client).Next(ctx)
}

// Books reads what the PSP has in its books, page after page.
type Books struct {
	client *psp.Client
	last   map[payments.OperationKind]string
}

// NewBooks begins at the first page.
func NewBooks(client *psp.Client) *Books {
	return &Books{client, map[payments.OperationKind]string{}}
}

// Next reads what has come since the last call; the first one reads all. The result is never nil
// without an error.
func (b *Books) Next(ctx context.Context) ([]invariant.PSPEntry, error) {
	books, last := []invariant.PSPEntry{}, maps.Clone(b.last)
	for _, kind := range []payments.OperationKind{payments.Charge, payments.RefundCharge} {
		for more := true; more; {
			var page []psp.Entry
			var err error
			if page, more, err = b.client.List(ctx, kind, last[kind]); err != nil {
				return nil, err
			}

			for _, e := range page {
				last[kind] = e.Reference
				books = append(books, invariant.PSPEntry{
					Kind: string(kind), Reference: e.Reference, ChargeReference: e.ChargeReference,
					OperationID: e.OperationID, AmountMinor: e.AmountMinor, Currency: e.Currency,
					Declined: e.Declined,
				})
			}
		}
	}

	b.last = last // not before: a page of a reading that failed is read again
	return books, nil
}

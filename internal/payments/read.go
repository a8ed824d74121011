package payments

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ErrNotFound is returned for an account or payment that does not exist or is another tenant's.
var ErrNotFound = errors.New("not found")

const selectAccount = `
SELECT id, kind, currency, name, balance_minor, held_minor, created_at FROM accounts WHERE id = $1 AND tenant_id = $2`

// FindAccount returns an account of the tenant, or ErrNotFound.
func FindAccount(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (Account, error) {
	var a Account
	err := tx.QueryRow(ctx, selectAccount, id, tenant).
		Scan(&a.ID, &a.Kind, &a.Currency, &a.Name, &a.BalanceMinor, &a.HeldMinor, &a.CreatedAt)
	if err != nil {
		return Account{}, fmt.Errorf("find account: %w", notFound(err))
	}

	a.CreatedAt = a.CreatedAt.UTC()
	return a, nil
}

const paymentColumns = `id, status, decline_code, amount_minor, released_minor, refunded_minor, currency,
    source_account, destination_account, description, metadata, client_reference, processed_at,
    authorization_expires_at, authorization_ended_at, version, payment_method, refunding_minor, settled_at`

// columns returns where to scan paymentColumns to. Call read afterwards: the table has what was
// released in the place of what was captured, which rows from before there were holds lack.
func (p *Payment) columns() []any {
	return []any{&p.ID, &p.Status, &p.DeclineCode, &p.AmountMinor, &p.CapturedMinor, &p.RefundedMinor,
		&p.Currency, &p.SourceAccount, &p.DestinationAccount, &p.Description, &p.Metadata,
		&p.ClientReference, &p.ProcessedAt,
		&p.AuthorizationExpiresAt, &p.AuthorizationEndedAt, &p.Version,
		&p.PaymentMethod, &p.RefundingMinor, &p.SettledAt}
}

// read gives scanned columns the form that they had in the first answer.
func (p *Payment) read() {
	p.CapturedMinor = p.releasedMinor() // the other way round is the same
	p.ProcessedAt = p.ProcessedAt.UTC()
	if p.PaymentMethod != nil && p.PaymentMethod.Type == byAccount {
		p.PaymentMethod = nil
	}
	for _, t := range []*time.Time{p.AuthorizationExpiresAt, p.AuthorizationEndedAt, p.SettledAt} {
		if t != nil {
			*t = t.UTC()
		}
	}
}

// The values of payments.payment_method.
const (
	byAccount = "account"
	byCard    = "card"
)

// releasedMinor is what a capture left of the amount.
func (p *Payment) releasedMinor() int64 {
	if p.Status != Completed {
		return 0
	}
	return p.AmountMinor - p.CapturedMinor
}

const selectPayment = `
SELECT ` + paymentColumns + ` FROM payments WHERE id = $1 AND tenant_id = $2`

// FindPayment returns a payment of the tenant, or ErrNotFound.
func FindPayment(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (Payment, error) {
	rows, err := tx.Query(ctx, selectPayment, id, tenant)
	if err != nil {
		return Payment{}, fmt.Errorf("find payment: %w", err)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPayment)
	if err != nil {
		return Payment{}, fmt.Errorf("find payment: %w", notFound(err))
	}
	return p, nil
}

// PaymentList selects payments of a tenant, newest first. Filters that are nil do not apply.
type PaymentList struct {
	Account *uuid.UUID // source or destination
	Status  Status     // empty: any
	From    *time.Time // inclusive
	To      *time.Time // exclusive
	Before  *uuid.UUID // the payment at which the previous page ended
	Limit   int
}

// By the primary key (tenant_id, id), backwards.
const selectPayments = `
SELECT ` + paymentColumns + ` FROM payments
WHERE tenant_id = $1 AND id < $2 AND id >= $3
ORDER BY id DESC LIMIT $4`

// Most payments are completed, so the primary key leads to a page of them at once. A tenant most of
// whose payments are not reads past those, for 3 s at most: an index for it would cost every payment.
const selectCompletedPayments = `
SELECT ` + paymentColumns + ` FROM payments
WHERE tenant_id = $1 AND id < $2 AND id >= $3 AND status = 'completed'
ORDER BY id DESC LIMIT $4`

// By payments_by_status, which has only payments that are not completed. Rows are compared, because
// status = $5 would make the primary key look equally good, and lead through all of the tenant's
// payments.
const selectPaymentsByStatus = `
SELECT ` + paymentColumns + ` FROM payments
WHERE tenant_id = $1 AND (status, id) < ($5, $2) AND (status, id) >= ($5, $3) AND status <> 'completed'
ORDER BY status DESC, id DESC LIMIT $4`

// By payments_source and payments_destination, backwards, each no further than the page needs. With
// OR in one scan, Postgres would read all payments of the account or of the tenant. No payment is
// in both: its accounts differ.
//
// The account comes first, by id and tenant, so that LATERAL reads nothing of an account that is
// not the tenant's. With row-level security alone, Postgres would read all of its history and
// discard it.
//
// The payments' tenant is checked last. Inside, it would make the primary key look equally good,
// and lead through all of the tenant's payments (observed with 10 million in a table that was never
// analysed).
const selectPaymentsOfAccount = `
SELECT ` + paymentColumns + ` FROM
    (SELECT id AS account FROM accounts WHERE id = $5 AND tenant_id = $1) a, LATERAL (
    (SELECT tenant_id, ` + paymentColumns + ` FROM payments
     WHERE source_account = account AND id < $2 AND id >= $3 ORDER BY id DESC LIMIT $4)
    UNION ALL
    (SELECT tenant_id, ` + paymentColumns + ` FROM payments
     WHERE destination_account = account AND id < $2 AND id >= $3 ORDER BY id DESC LIMIT $4)) p
WHERE tenant_id = $1
ORDER BY id DESC LIMIT $4`

// The same with a status, completed or not.
const selectCompletedOfAccount = `
SELECT ` + paymentColumns + ` FROM
    (SELECT id AS account FROM accounts WHERE id = $5 AND tenant_id = $1) a, LATERAL (
    (SELECT tenant_id, ` + paymentColumns + ` FROM payments
     WHERE source_account = account AND id < $2 AND id >= $3 AND status = 'completed'
     ORDER BY id DESC LIMIT $4)
    UNION ALL
    (SELECT tenant_id, ` + paymentColumns + ` FROM payments
     WHERE destination_account = account AND id < $2 AND id >= $3 AND status = 'completed'
     ORDER BY id DESC LIMIT $4)) p
WHERE tenant_id = $1
ORDER BY id DESC LIMIT $4`

// By payments_source_by_status and payments_destination_by_status, which have only payments that
// are not completed.
const selectStatusOfAccount = `
SELECT ` + paymentColumns + ` FROM
    (SELECT id AS account FROM accounts WHERE id = $5 AND tenant_id = $1) a, LATERAL (
    (SELECT tenant_id, ` + paymentColumns + ` FROM payments
     WHERE source_account = account AND (status, id) < ($6, $2) AND (status, id) >= ($6, $3)
       AND status <> 'completed'
     ORDER BY status DESC, id DESC LIMIT $4)
    UNION ALL
    (SELECT tenant_id, ` + paymentColumns + ` FROM payments
     WHERE destination_account = account AND (status, id) < ($6, $2) AND (status, id) >= ($6, $3)
       AND status <> 'completed'
     ORDER BY status DESC, id DESC LIMIT $4)) p
WHERE tenant_id = $1
ORDER BY id DESC LIMIT $4`

// ListPayments returns the payments of the tenant that l selects.
func ListPayments(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, l PaymentList) ([]Payment, error) {
	lowest, end := idBound(l.From, uuid.UUID{}), idBound(l.To, uuid.Max)
	if l.Before != nil && bytes.Compare(l.Before[:], end[:]) < 0 {
		end = *l.Before
	}

	query, args := selectPayments, []any{tenant, end, lowest, l.Limit}
	if l.Account != nil {
		query, args = selectPaymentsOfAccount, append(args, *l.Account)
	}
	switch {
	case l.Status == Completed && l.Account != nil:
		query = selectCompletedOfAccount
	case l.Status == Completed:
		query = selectCompletedPayments
	case l.Status != "" && l.Account != nil:
		query, args = selectStatusOfAccount, append(args, string(l.Status))
	case l.Status != "":
		query, args = selectPaymentsByStatus, append(args, string(l.Status))
	}

	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list payments: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanPayment)
	if err != nil {
		return nil, fmt.Errorf("list payments: %w", err)
	}
	return found, nil
}

// idBound returns the lowest id that a payment at t or later can have: ids are UUIDv7s made from
// the time in milliseconds. Without t it returns otherwise.
func idBound(t *time.Time, otherwise uuid.UUID) (id uuid.UUID) {
	if t == nil {
		return otherwise
	}

	ms := t.Add(time.Millisecond - 1).UnixMilli() // rounded up
	ms = min(max(ms, 0), 1<<48-1)
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(ms)) // 48 bits
	copy(id[:6], b[2:])
	return id
}

const selectOwnAccount = `SELECT id FROM accounts WHERE id = $1 AND tenant_id = $2`

// By the primary key (account_id, entry_no), backwards. The tenant is the account's, checked once.
const selectEntries = `
SELECT entry_no, id, payment_id, refund_id, amount_minor, balance_after_minor, created_at FROM ledger_entries
WHERE account_id = $1 AND entry_no < $3
  AND EXISTS (SELECT FROM accounts WHERE accounts.id = $1 AND accounts.tenant_id = $2)
ORDER BY entry_no DESC LIMIT $4`

// ListedEntry is an entry with its number, at which the next page can start.
type ListedEntry struct {
	Entry
	Number int64 `json:"-"` // 1, 2, 3 … within the account
}

// ListEntries returns the entries of an account numbered below before, newest first, or ErrNotFound
// if the tenant has no such account.
func ListEntries(
	ctx context.Context, tx pgx.Tx, tenant, account uuid.UUID, before int64, limit int,
) ([]ListedEntry, error) {
	var own uuid.UUID
	if err := tx.QueryRow(ctx, selectOwnAccount, account, tenant).Scan(&own); err != nil {
		return nil, fmt.Errorf("find account: %w", notFound(err))
	}

	rows, err := tx.Query(ctx, selectEntries, account, tenant, before, limit)
	if err != nil {
		return nil, fmt.Errorf("list entries: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanEntry)
	if err != nil {
		return nil, fmt.Errorf("list entries: %w", err)
	}
	return found, nil
}

func scanPayment(row pgx.CollectableRow) (p Payment, err error) {
	err = row.Scan(p.columns()...)
	p.read()
	return p, err
}

func scanEntry(row pgx.CollectableRow) (e ListedEntry, err error) {
	err = row.Scan(&e.Number, &e.ID, &e.PaymentID, &e.RefundID, &e.AmountMinor, &e.BalanceAfterMinor, &e.CreatedAt)
	e.CreatedAt = e.CreatedAt.UTC()
	return e, err
}

func notFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

package httpapi

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// page is the answer of every list, newest first. Pages go by key, not by offset: what is added meanwhile shifts nothing.
type page[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"` // null: this is the end
}

// cut makes a page of rows, of which one more than limit was asked for, to see whether there are more.
func cut[T any](rows []T, limit int, next func(last T) string) page[T] {
	p := page[T]{Items: rows}
	if len(rows) > limit {
		p.Items = rows[:limit]
		cursor := next(rows[limit-1])
		p.NextCursor = &cursor
	}
	if p.Items == nil {
		p.Items = []T{} // [], not null
	}
	return p
}

// start reads the cursor; first: where a list without one begins.
func (s *server) start(q *query, list string, first position) (position, error) {
	if !q.values.Has("cursor") {
		return first, nil
	}
	return s.open(list, q.values.Get("cursor"))
}

// By the primary key (tenant_id, id), backwards.
const selectPayments = `
SELECT ` + paymentColumns + ` FROM payments
WHERE tenant_id = $1 AND id < $2 AND id >= $3
ORDER BY id DESC LIMIT $4`

// By payments_source and payments_destination, backwards, each no further than the page needs. With OR in one scan Postgres
// would read all of the account's payments, or all of the tenant's. No payment is in both: its accounts differ.
//
// The account comes first, by id and tenant: LATERAL reads no payment of an account that is not the
// tenant's. Behind row-level security alone, all of its history would be read and thrown away.
//
// The payments' tenant is looked at last. Inside, it would make the primary key look like as good a way, through all
// of the tenant's payments (which happened with 10 million in a table that was never analysed).
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

func (s *server) listPayments(_ http.Header, r *http.Request) (idempotency.Response, error) {
	q, err := newQuery(r, "limit", "cursor", "account", "from", "to")
	if err != nil {
		return idempotency.Response{}, err
	}
	limit, account, from, to := q.limit(), q.account(), q.time("from"), q.time("to")
	if err := q.err(); err != nil {
		return idempotency.Response{}, err
	}
	lowest, end := idBound(from, uuid.UUID{}), idBound(to, uuid.Max)
	list := strings.Join([]string{paymentsPath, tenantOf(r).String(), fmt.Sprint(account), lowest.String(), end.String()}, " ")
	before, err := s.start(q, list, position(end))
	if err != nil {
		return idempotency.Response{}, err
	}
	query, args := selectPayments, []any{tenantOf(r), uuid.UUID(before), lowest, limit + 1}
	if account != nil {
		query, args = selectPaymentsOfAccount, append(args, *account)
	}
	found, err := collect(r.Context(), s, tenantOf(r), scanPayment, query, args...)
	if err != nil {
		return idempotency.Response{}, fmt.Errorf("list payments: %w", err)
	}
	return ok(cut(found, limit, func(last payments.Payment) string { return s.sign(list, position(last.ID)) })), nil
}

// idBound is the lowest id that a payment of time t or later can have: ids are UUIDv7s made from the time in milliseconds.
// So from is inclusive and to is not. otherwise is for no time.
func idBound(t *time.Time, otherwise uuid.UUID) (id uuid.UUID) {
	if t == nil {
		return otherwise
	}
	ms := t.Add(time.Millisecond - 1).UnixMilli() // up, to the next whole one
	ms = min(max(ms, 0), 1<<48-1)
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(ms)) // 48 bits
	copy(id[:6], b[2:])
	return id
}

const selectOwnAccount = `SELECT id FROM accounts WHERE id = $1 AND tenant_id = $2`

// By the primary key (account_id, entry_no), backwards. The tenant is the account's, looked at once.
const selectEntries = `
SELECT entry_no, id, payment_id, amount_minor, balance_after_minor, created_at FROM ledger_entries
WHERE account_id = $1 AND entry_no < $3
  AND EXISTS (SELECT FROM accounts WHERE accounts.id = $1 AND accounts.tenant_id = $2)
ORDER BY entry_no DESC LIMIT $4`

// entry is an Entry with its number, which cursors are made of.
type entry struct {
	payments.Entry
	number int64
}

func (s *server) listEntries(_ http.Header, r *http.Request) (idempotency.Response, error) {
	id, err := pathID(r)
	if err != nil {
		return idempotency.Response{}, err
	}
	q, err := newQuery(r, "limit", "cursor")
	if err != nil {
		return idempotency.Response{}, err
	}
	limit := q.limit()
	if err := q.err(); err != nil {
		return idempotency.Response{}, err
	}
	list := strings.Join([]string{accountsPath, tenantOf(r).String(), id.String()}, " ")
	at, err := s.start(q, list, numbered(math.MaxInt64))
	if err != nil {
		return idempotency.Response{}, err
	}
	own, err := collect(r.Context(), s, tenantOf(r), pgx.RowTo[uuid.UUID], selectOwnAccount, id, tenantOf(r))
	if err != nil {
		return idempotency.Response{}, fmt.Errorf("find account: %w", err)
	}
	if len(own) == 0 {
		return idempotency.Response{}, errNotFound
	}
	before := int64(binary.BigEndian.Uint64(at[8:])) // made from an int64
	found, err := collect(r.Context(), s, tenantOf(r), scanEntry, selectEntries, id, tenantOf(r), before, limit+1)
	if err != nil {
		return idempotency.Response{}, fmt.Errorf("list entries: %w", err)
	}
	return ok(cut(found, limit, func(last entry) string { return s.sign(list, numbered(last.number)) })), nil
}

func numbered(n int64) (at position) {
	binary.BigEndian.PutUint64(at[8:], uint64(n)) // the bits matter, not the number
	return at
}

func scanEntry(row pgx.CollectableRow) (e entry, err error) {
	err = row.Scan(&e.number, &e.ID, &e.PaymentID, &e.AmountMinor, &e.BalanceAfterMinor, &e.CreatedAt)
	e.CreatedAt = e.CreatedAt.UTC()
	return e, err
}

// collect reads all rows of a query in the sight of one tenant.
func collect[T any](ctx context.Context, s *server, tenant uuid.UUID, scan pgx.RowToFunc[T], query string, args ...any) (all []T, err error) {
	err = s.read(ctx, tenant, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, scan)
		return err
	})
	return all, err
}

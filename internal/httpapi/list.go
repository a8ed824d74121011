package httpapi

import (
	"context"
	"math"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/payments"
)

// page is the answer of every list, newest first. A page continues after a row, not at an offset,
// so rows that are added meanwhile shift nothing.
type page[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"` // null: the end
}

// cut makes a page of rows, which were read with one more than limit to see whether there are more.
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

func (s *server) listPayments(c *call) (response, error) {
	q, err := newQuery(c.Request, "limit", "cursor", "account", "status", "from", "to")
	if err != nil {
		return response{}, err
	}

	// One row more than the page holds shows whether there is a next page.
	limit := q.limit()
	list := payments.PaymentList{
		Account: q.account(), Status: q.status(),
		From: q.time("from"), To: q.time("to"), Limit: limit + 1,
	}
	if err := q.err(); err != nil {
		return response{}, err
	}

	if cursor := q.cursor(); cursor != nil {
		before, err := paymentCursor(*cursor)
		if err != nil {
			return response{}, err
		}
		list.Before = &before
	}

	found, err := read(c, s, func(tx pgx.Tx) ([]payments.Payment, error) {
		return payments.ListPayments(c.Context(), tx, c.tenant(), list)
	})
	if err != nil {
		return response{}, err
	}

	next := func(last payments.Payment) string { return last.ID.String() }
	return ok(cut(found, limit, next)), nil
}

func (s *server) listEntries(c *call) (response, error) {
	return listBelow(c, s, payments.ListEntries,
		func(last payments.ListedEntry) int64 { return last.Number })
}

func (s *server) listRefunds(c *call) (response, error) {
	return listBelow(c, s, payments.ListRefunds,
		func(last payments.Refund) int64 { return last.PaymentVersion })
}

// listBelow answers with a page of what belongs to {id}, newest first: list returns those whose
// number is below before.
func listBelow[T any](
	c *call, s *server,
	list func(ctx context.Context, tx pgx.Tx, tenant, of uuid.UUID, before int64, limit int) ([]T, error),
	number func(T) int64,
) (response, error) {
	id, err := c.pathID()
	if err != nil {
		return response{}, err
	}

	q, err := newQuery(c.Request, "limit", "cursor")
	if err != nil {
		return response{}, err
	}
	limit := q.limit()
	if err := q.err(); err != nil {
		return response{}, err
	}

	before := int64(math.MaxInt64)
	if cursor := q.cursor(); cursor != nil {
		if before, err = numberCursor(*cursor); err != nil {
			return response{}, err
		}
	}

	found, err := read(c, s, func(tx pgx.Tx) ([]T, error) {
		return list(c.Context(), tx, c.tenant(), id, before, limit+1)
	})
	if err != nil {
		return response{}, err
	}

	next := func(last T) string { return strconv.FormatInt(number(last), 10) }
	return ok(cut(found, limit, next)), nil
}

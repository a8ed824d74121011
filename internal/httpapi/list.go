package httpapi

import (
	"math"
	"strconv"

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
	q, err := newQuery(c.Request, "limit", "cursor", "account", "from", "to")
	if err != nil {
		return response{}, err
	}

	// One row more than the page holds shows whether there is a next page.
	limit := q.limit()
	list := payments.PaymentList{
		Account: q.account(), From: q.time("from"), To: q.time("to"), Limit: limit + 1,
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
	account, err := c.pathID()
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
		if before, err = entryCursor(*cursor); err != nil {
			return response{}, err
		}
	}

	found, err := read(c, s, func(tx pgx.Tx) ([]payments.ListedEntry, error) {
		return payments.ListEntries(c.Context(), tx, c.tenant(), account, before, limit+1)
	})
	if err != nil {
		return response{}, err
	}

	next := func(last payments.ListedEntry) string { return strconv.FormatInt(last.Number, 10) }
	return ok(cut(found, limit, next)), nil
}

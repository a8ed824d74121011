package httpapi

import (
	"context"
	"math"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/payments"
)

// read runs fn for a GET in one snapshot, in one of the tenant's turns. The turn lasts until the answer is written:
// a page may have 6 MiB, and a client that does not read its answers must not fill the memory.
func read[T any](c *call, s *server, fn func(pgx.Tx) (T, error)) (v T, err error) {
	done, err := s.admission.read(c.Context(), c.tenant())
	if err != nil {
		return v, err
	}
	c.done = done

	return asTenant(c.Context(), s.Read, pgx.RepeatableRead, c.tenant(), fn)
}

// asTenant runs fn in a read-only transaction that sees the rows of one tenant. BEGIN sets the
// tenant in the same round trip and for this transaction only, so the connection returns to the
// pool unchanged. The text of a UUID consists of hexadecimal digits and hyphens, so it is safe in
// SQL.
func asTenant[T any](
	ctx context.Context, db *pgxpool.Pool, level pgx.TxIsoLevel, tenant uuid.UUID,
	fn func(pgx.Tx) (T, error),
) (v T, err error) {
	o := pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL " + string(level) + " READ ONLY; " +
		"SET LOCAL oncepay.tenant = '" + tenant.String() + "'"}
	err = pgx.BeginTxFunc(ctx, db, o, func(tx pgx.Tx) (err error) {
		v, err = fn(tx)
		return err
	})
	return v, err
}

func (s *server) getAccount(c *call) (response, error) {
	account, err := readOne(c, s, payments.FindAccount)
	if err != nil {
		return response{}, err
	}
	return ok(account), nil
}

func (s *server) getRefund(c *call) (response, error) {
	refund, err := readSettled(c, s, payments.FindRefund, payments.Refund.Unsettled)
	if err != nil {
		return response{}, err
	}
	return ok(refund), nil
}

// shownRefunds is how many refunds a payment is shown with. The list of its refunds has all.
const shownRefunds = 20

// shownPayment is a payment with its newest refunds.
type shownPayment struct {
	payments.Payment
	Refunds []payments.Refund `json:"refunds"`
}

func (s *server) getPayment(c *call) (response, error) {
	payment, err := readSettled(c, s, findPayment, shownPayment.Unsettled)
	if err != nil {
		return response{}, err
	}

	tag := etag(payment.Version)
	c.header.Set("ETag", tag)
	if knows(c.Header, tag) {
		return response{status: http.StatusNotModified}, nil
	}
	return ok(payment), nil
}

func findPayment(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (p shownPayment, err error) {
	p.Refunds = []payments.Refund{} // [], not null
	if p.Payment, err = payments.FindPayment(ctx, tx, tenant, id); err != nil || p.Version == 1 {
		return p, err
	}

	// In the snapshot that the payment was read in: the same ETag must not have two bodies.
	refunds, err := payments.ListRefunds(ctx, tx, tenant, id, math.MaxInt64, shownRefunds)
	if len(refunds) > 0 {
		p.Refunds = refunds
	}
	return p, err
}

// readOne reads what {id} names.
func readOne[T any](
	c *call, s *server, find func(ctx context.Context, tx pgx.Tx, tenant, id uuid.UUID) (T, error),
) (v T, err error) {
	id, err := c.pathID()
	if err != nil {
		return v, err
	}
	if _, err := newQuery(c.Request); err != nil {
		return v, err
	}

	return read(c, s, func(tx pgx.Tx) (T, error) { return find(c.Context(), tx, c.tenant(), id) })
}

package httpapi

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/payments"
)

// read runs fn for a GET, in one of the tenant's turns. The turn lasts until the answer is written:
// a page may have 6 MiB, and a client that does not read its answers must not fill the memory.
func read[T any](c *call, s *server, fn func(pgx.Tx) (T, error)) (v T, err error) {
	done, err := s.admission.read(c.Context(), c.tenant())
	if err != nil {
		return v, err
	}
	c.done = done

	return asTenant(c.Context(), s.Read, c.tenant(), fn)
}

// asTenant runs fn in a read-only transaction that sees the rows of one tenant. BEGIN sets the
// tenant in the same round trip and for this transaction only, so the connection returns to the
// pool unchanged. The text of a UUID consists of hexadecimal digits and hyphens, so it is safe in
// SQL. idempotency.Peek relies on READ COMMITTED.
func asTenant[T any](
	ctx context.Context, db *pgxpool.Pool, tenant uuid.UUID, fn func(pgx.Tx) (T, error),
) (v T, err error) {
	o := pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; " +
		"SET LOCAL oncepay.tenant = '" + tenant.String() + "'"}
	err = pgx.BeginTxFunc(ctx, db, o, func(tx pgx.Tx) (err error) {
		v, err = fn(tx)
		return err
	})
	return v, err
}

func (s *server) getAccount(c *call) (response, error) {
	id, err := c.pathID()
	if err != nil {
		return response{}, err
	}
	if _, err := newQuery(c.Request); err != nil {
		return response{}, err
	}

	account, err := read(c, s, func(tx pgx.Tx) (payments.Account, error) {
		return payments.FindAccount(c.Context(), tx, c.tenant(), id)
	})
	if err != nil {
		return response{}, err
	}
	return ok(account), nil
}

func (s *server) getPayment(c *call) (response, error) {
	id, err := c.pathID()
	if err != nil {
		return response{}, err
	}
	if _, err := newQuery(c.Request); err != nil {
		return response{}, err
	}

	payment, err := read(c, s, func(tx pgx.Tx) (payments.Payment, error) {
		return payments.FindPayment(c.Context(), tx, c.tenant(), id)
	})
	if err != nil {
		return response{}, err
	}
	return ok(payment), nil
}

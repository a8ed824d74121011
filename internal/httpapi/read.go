package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// read runs fn in a read-only transaction that sees the rows of one tenant. The tenant is set in the round trip of BEGIN,
// and for this transaction only: the connection goes back to the pool as it was. A UUID's text is hexadecimal
// digits and hyphens, so it can stand in SQL. READ COMMITTED, because that is what idempotency.Peek relies on.
//
// A tenant that floods waits for itself, and is refused when that takes too long.
func (s *server) read(ctx context.Context, tenant uuid.UUID, fn func(pgx.Tx) error) error {
	done := s.reads.take(ctx, tenant)
	if done == nil {
		return refuse("rate-limited", "Too many requests of this tenant read at the moment. Repeat the identical request later.").
			with("Retry-After", soon())
	}
	defer done()

	begin := "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL oncepay.tenant = '" + tenant.String() + "'"
	return pgx.BeginTxFunc(ctx, s.Read, pgx.TxOptions{BeginQuery: begin}, fn)
}

// tenantOf is whose rows a request may see.
func tenantOf(r *http.Request) uuid.UUID { return exchangeOf(r).seen.Identity.TenantID }

// pathID reads {id}. What is no id is nowhere.
func pathID(r *http.Request) (uuid.UUID, error) {
	id, ok := canonicalID(chi.URLParam(r, "id"))
	if !ok {
		return id, errNotFound
	}
	return id, nil
}

const selectAccount = `
SELECT id, kind, currency, name, balance_minor, created_at FROM accounts WHERE id = $1 AND tenant_id = $2`

func (s *server) getAccount(_ http.Header, r *http.Request) (idempotency.Response, error) {
	id, err := pathID(r)
	if err != nil {
		return idempotency.Response{}, err
	}
	if _, err := newQuery(r); err != nil {
		return idempotency.Response{}, err
	}
	var a payments.Account
	err = s.read(r.Context(), tenantOf(r), func(tx pgx.Tx) error {
		return tx.QueryRow(r.Context(), selectAccount, id, tenantOf(r)).
			Scan(&a.ID, &a.Kind, &a.Currency, &a.Name, &a.BalanceMinor, &a.CreatedAt)
	})
	if err != nil {
		return idempotency.Response{}, missing(err, "read account")
	}
	a.CreatedAt = a.CreatedAt.UTC()
	return ok(a), nil
}

const paymentColumns = `id, status, decline_code, amount_minor, currency, source_account, destination_account, description, metadata, client_reference, processed_at`

const selectPayment = `
SELECT ` + paymentColumns + ` FROM payments WHERE id = $1 AND tenant_id = $2`

func (s *server) getPayment(_ http.Header, r *http.Request) (idempotency.Response, error) {
	id, err := pathID(r)
	if err != nil {
		return idempotency.Response{}, err
	}
	if _, err := newQuery(r); err != nil {
		return idempotency.Response{}, err
	}
	var p payments.Payment
	err = s.read(r.Context(), tenantOf(r), func(tx pgx.Tx) error {
		rows, err := tx.Query(r.Context(), selectPayment, id, tenantOf(r))
		if err != nil {
			return err
		}
		p, err = pgx.CollectExactlyOneRow(rows, scanPayment)
		return err
	})
	if err != nil {
		return idempotency.Response{}, missing(err, "read payment")
	}
	return ok(p), nil
}

func scanPayment(row pgx.CollectableRow) (p payments.Payment, err error) {
	err = row.Scan(&p.ID, &p.Status, &p.DeclineCode, &p.AmountMinor, &p.Currency, &p.SourceAccount, &p.DestinationAccount,
		&p.Description, &p.Metadata, &p.ClientReference, &p.ProcessedAt)
	p.ProcessedAt = p.ProcessedAt.UTC() // the same bytes as when it was made
	return p, err
}

// missing turns "no row" into the one answer for everything that is not there.
func missing(err error, doing string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errNotFound
	}
	return fmt.Errorf("%s: %w", doing, err)
}

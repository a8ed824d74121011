package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

// operation is an operation of the PSP as its operator sees it.
type operation struct {
	ID           uuid.UUID               `json:"id"`
	Tenant       string                  `json:"tenant"`
	PaymentID    uuid.UUID               `json:"payment_id"`
	RefundID     *uuid.UUID              `json:"refund_id"`
	Kind         payments.OperationKind  `json:"kind"`
	AmountMinor  int64                   `json:"amount_minor"`
	Currency     string                  `json:"currency"`
	State        payments.OperationState `json:"state"`
	AskOperator  bool                    `json:"waits_for_operator"`
	Tries        int                     `json:"tries"`
	AgeSeconds   float64                 `json:"age_seconds"` // since it was decided
	CreatedAt    time.Time               `json:"created_at"`
	FirstTriedAt *time.Time              `json:"first_tried_at"`
	NextTryAt    *time.Time              `json:"next_try_at"` // nil: ended, or it waits for an operator
	EndedAt      *time.Time              `json:"ended_at"`
	Reference    string                  `json:"reference"`
	Code         string                  `json:"code"`
	LastError    string                  `json:"last_error"`
	ResolvedBy   string                  `json:"resolved_by"`
}

// operationColumns are those of operation, in its order. Without its tenant an operation would still
// be shown.
const operationColumns = `o.id, coalesce(t.name, o.tenant_id::text), o.payment_id, o.refund_id, o.kind, o.amount_minor,
  o.currency, o.state, o.ended_at IS NULL AND o.next_try_at = 'infinity', o.tries,
  extract(epoch FROM clock_timestamp() - o.created_at)::float8, o.created_at, o.first_tried_at,
  CASE WHEN o.ended_at IS NULL AND o.next_try_at <> 'infinity' THEN o.next_try_at END,
  o.ended_at, o.reference, o.code, o.last_error, o.resolved_by`

const maxListed = 1000

func (o operator) listOperations() *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "Show the operations that have not ended, those that wait for you first",
		Long: `Shows the operations at the payment service provider (PSP) that have not ended: those first that
wait for an operator, then the oldest. With --state, those in one state, the youngest first.

  pending  never sent
  unknown  sent, perhaps executed; the worker asks again at NEXT, or it waits for an operator`,
		Example: "  oncepay psp list\n  oncepay psp list --state failed --limit 10 --json",
	}

	var state string
	program.Flag(c, &state, "state", "STATE",
		"operator, pending, unknown, succeeded, declined or failed", parseState)
	limit := c.Flags().Int("limit", 100, "how many at most, up to 1000")

	c.RunE = func(c *cobra.Command, args []string) error {
		if *limit < 1 || *limit > maxListed {
			return fmt.Errorf("--limit must be from 1 to %d", maxListed)
		}
		return runs(o, looks, func(ctx context.Context, tx pgx.Tx) ([]operation, error) {
			return readOperations(ctx, tx, state, *limit)
		}, printOperations)(c, args)
	}
	return c
}

const waitForOperator = "operator" // not a state of its own

func parseState(s string) (string, error) {
	states := []string{waitForOperator, string(payments.Pending), string(payments.Unknown),
		string(payments.Succeeded), string(payments.OperationDeclined), string(payments.OperationFailed)}
	if !slices.Contains(states, s) {
		return "", errors.New("it must be one of " + strings.Join(states, ", "))
	}
	return s, nil
}

// By psp_operations_due, which has no operation that ended.
const listOpenOperations = `
SELECT ` + operationColumns + `
FROM psp_operations o LEFT JOIN tenants t ON t.id = o.tenant_id
WHERE o.state IN ('pending', 'unknown') AND ($1 = '' OR CASE $1 WHEN 'operator' THEN o.next_try_at = 'infinity' ELSE o.state = $1 END)
ORDER BY o.next_try_at = 'infinity' DESC, o.created_at, o.id LIMIT $2`

// By the primary key: it ends when it has found enough.
const listEndedOperations = `
SELECT ` + operationColumns + `
FROM psp_operations o LEFT JOIN tenants t ON t.id = o.tenant_id
WHERE o.state = $1 ORDER BY o.id DESC LIMIT $2`

func readOperations(ctx context.Context, tx pgx.Tx, state string, limit int) ([]operation, error) {
	query := listOpenOperations
	if payments.OperationState(state).Ended() {
		query = listEndedOperations
	}

	rows, _ := tx.Query(ctx, query, state, limit) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[operation])
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	return all, nil
}

func printOperations(w io.Writer, all []operation) {
	if len(all) == 0 {
		program.Row(w, "no operations")
		return
	}

	program.Row(w, "ID", "KIND", "AMOUNT", "STATE", "AGE", "TRIES", "NEXT", "LAST ERROR")
	for _, o := range all {
		program.Row(w, o.ID, o.Kind, money(o.AmountMinor, o.Currency), o.State, o.age(), o.Tries,
			o.next(), o.LastError)
	}
}

func (o operation) age() string {
	return time.Duration(o.AgeSeconds * float64(time.Second)).Round(time.Second).String()
}

func (o operation) next() any {
	if o.AskOperator {
		return "OPERATOR"
	}
	return o.NextTryAt
}

// operationDetails is an operation with its surroundings.
type operationDetails struct {
	operation
	Key             string  `json:"key"` // derived: what the PSP knows it by
	PaymentStatus   string  `json:"payment_status"`
	RefundStatus    *string `json:"refund_status"`
	Client          string  `json:"client"`
	ClientKey       string  `json:"client_key"` // under which the client asked
	ChargeReference string  `json:"charge_reference"`
}

func (o operator) showOperation() *cobra.Command {
	c := &cobra.Command{
		Use:     "show ID",
		Short:   "Show one with its payment, its tries, and the keys: the client's and the PSP's",
		Example: "  oncepay psp show 0198a6de-5c1f-7000-8000-0123456789ab",
	}

	var id uuid.UUID
	program.Argument(c, &id, parseID)
	c.RunE = runs(o, looks, func(ctx context.Context, tx pgx.Tx) (operationDetails, error) {
		return findOperation(ctx, tx, id)
	}, printOperation)
	return c
}

const findOperationSQL = `
SELECT ` + operationColumns + `,
  coalesce(p.status, 'missing'), r.status, coalesce(c.name, ''),
  coalesce(CASE o.kind WHEN 'charge' THEN p.idempotency_key ELSE k.idempotency_key END, ''),
  CASE o.kind WHEN 'charge' THEN o.reference ELSE coalesce(charge.reference, '') END
FROM psp_operations o
LEFT JOIN tenants t ON t.id = o.tenant_id
LEFT JOIN payments p ON p.tenant_id = o.tenant_id AND p.id = o.payment_id
LEFT JOIN refunds r ON r.tenant_id = o.tenant_id AND r.id = o.refund_id
LEFT JOIN payment_commands k ON k.tenant_id = o.tenant_id AND k.payment_id = r.payment_id AND k.version = r.payment_version
LEFT JOIN clients c ON c.id = CASE o.kind WHEN 'charge' THEN p.client_id ELSE k.client_id END
LEFT JOIN psp_operations charge ON charge.payment_id = o.payment_id AND charge.kind = 'charge'
WHERE o.id = $1`

var errNoOperation = errors.New("there is no such operation: oncepay psp list shows them")

func findOperation(ctx context.Context, tx pgx.Tx, id uuid.UUID) (d operationDetails, err error) {
	o := &d.operation
	err = tx.QueryRow(ctx, findOperationSQL, id).Scan(&o.ID, &o.Tenant, &o.PaymentID, &o.RefundID,
		&o.Kind, &o.AmountMinor, &o.Currency, &o.State, &o.AskOperator, &o.Tries, &o.AgeSeconds,
		&o.CreatedAt, &o.FirstTriedAt, &o.NextTryAt, &o.EndedAt, &o.Reference, &o.Code, &o.LastError,
		&o.ResolvedBy, &d.PaymentStatus, &d.RefundStatus, &d.Client, &d.ClientKey, &d.ChargeReference)

	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return d, errNoOperation
	case err != nil:
		return d, fmt.Errorf("find operation: %w", err)
	}
	d.Key = payments.Operation{ID: id}.Key()
	return d, nil
}

func printOperation(w io.Writer, d operationDetails) {
	program.Row(w, "operation", d.ID)
	program.Row(w, "kind", d.Kind, money(d.AmountMinor, d.Currency))
	program.Row(w, "payment", d.PaymentID, d.PaymentStatus)
	if d.RefundID != nil {
		program.Row(w, "refund", *d.RefundID, *orDash(d.RefundStatus))
		program.Row(w, "of charge", d.ChargeReference)
	}
	program.Row(w, "tenant", d.Tenant)
	program.Row(w, "client", d.Client)
	program.Row(w, "client's key", d.ClientKey)
	program.Row(w, "key at the PSP", d.Key)

	program.Row(w, "state", d.State)
	program.Row(w, "made", d.CreatedAt, d.age()+" ago")
	program.Row(w, "tries", d.Tries)
	program.Row(w, "first try", d.FirstTriedAt)
	if d.EndedAt == nil {
		program.Row(w, "next try", d.next())
	}
	program.Row(w, "ended", d.EndedAt)
	for _, row := range [][2]string{
		{"reference", d.Reference}, {"code", d.Code}, {"last error", d.LastError},
		{"resolved by", d.ResolvedBy},
	} {
		if row[1] != "" {
			program.Row(w, row[0], row[1])
		}
	}
}

func orDash(s *string) *string {
	if s == nil {
		dash := "-"
		return &dash
	}
	return s
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

const retryOperationSQL = `
UPDATE psp_operations SET next_try_at = now()
WHERE id = $1 AND state IN ('pending', 'unknown')
  AND tenant_id <> ALL(ARRAY(SELECT tenant_id FROM tenant_moves WHERE state = 'left'))`

var errItsTenantHasLeft = errors.New(
	"its tenant has left for another cluster: see to it there; nothing was changed")

func (o operator) retryOperation() *cobra.Command {
	c := &cobra.Command{
		Use:   "retry ID",
		Short: "Make one due now: the worker sends it again, or looks it up if its key is too old",
		Long: `Makes one due now. The worker sends it again under the same key, or, when the PSP may have
forgotten the key, looks it up there. Either charges nobody twice.`,
		Example: "  oncepay psp retry 0198a6de-5c1f-7000-8000-0123456789ab",
	}

	var id uuid.UUID
	program.Argument(c, &id, parseID)
	c.RunE = runs(o, changes, func(ctx context.Context, tx pgx.Tx) (operationDetails, error) {
		tag, err := tx.Exec(ctx, retryOperationSQL, id)
		if err != nil {
			return operationDetails{}, fmt.Errorf("retry operation: %w", err)
		}

		d, err := findOperation(ctx, tx, id)
		switch {
		case err != nil || tag.RowsAffected() > 0:
			return d, err
		case d.State.Ended():
			return d, fmt.Errorf("it has ended: %s", d.State)
		}
		return d, errItsTenantHasLeft
	}, func(w io.Writer, d operationDetails) {
		program.Row(w, fmt.Sprintf("%s of %s is due now, if a worker runs; what came of it:",
			d.Kind, money(d.AmountMinor, d.Currency)))
		program.Row(w, "oncepay psp show "+d.ID.String())
	})
	return c
}

// resolution is what the flags of resolve say.
type resolution struct {
	succeeded, declined, failed bool
	reference, by               string
	amount                      int64 // that the PSP shows
	anyway                      bool
}

func (o operator) resolveOperation() *cobra.Command {
	c := &cobra.Command{
		Use:   "resolve ID",
		Short: "Record by hand what became of one, after asking the PSP's people",
		Long: `Records by hand what became of an operation that waits for an operator. Ask the PSP first, with the
key that show prints: what is recorded here moves money in our books, and ends the payment or the
refund. It cannot be taken back.

  --succeeded  the PSP executed it; --reference is its id there, --amount what it shows
  --declined   the PSP declined it, and moved nothing
  --failed     it never happened, and never will

An operation that the worker still tries is refused without --anyway.`,
		Example: "  oncepay psp resolve --succeeded --reference ch_1 --amount 2500 --by ada 0198a6de-…\n" +
			"  oncepay psp resolve --failed --by ada 0198a6de-…",
	}

	var id uuid.UUID
	var r resolution
	program.Argument(c, &id, parseID)
	f := c.Flags()
	f.BoolVar(&r.succeeded, "succeeded", false, "the money moved")
	f.BoolVar(&r.declined, "declined", false, "the PSP declined it")
	f.BoolVar(&r.failed, "failed", false, "it was not executed, and will not be")
	program.Flag(c, &r.reference, "reference", "ID", "the PSP's id of the charge or refund", parseText)
	program.Flag(c, &r.amount, "amount", "AMOUNT",
		"minor units that moved, as the PSP shows them: the confirmation of --succeeded", parseAmount)
	program.Flag(c, &r.by, "by", "NAME", "who found that out; kept with the operation", parseName)
	f.BoolVar(&r.anyway, "anyway", false, "although the worker still tries")
	program.Require(c, "by")

	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := r.check(); err != nil {
			return fmt.Errorf("%w (oncepay psp resolve -h explains it)", err)
		}

		db, err := o.open(c.Context())
		if err != nil {
			return err
		}
		defer db.Close()

		d, err := r.resolve(c.Context(), db, id)
		if err != nil {
			return err
		}
		return program.Show(c, d, func(w io.Writer) { printOperation(w, d) })
	}
	return c
}

// check looks at the flags together, before anything is touched.
func (r resolution) check() error {
	n := 0
	for _, is := range []bool{r.succeeded, r.declined, r.failed} {
		if is {
			n++
		}
	}

	switch {
	case n != 1:
		return errors.New("say one of --succeeded, --declined and --failed")
	case r.succeeded && strings.TrimSpace(r.reference) == "":
		return errors.New("--succeeded needs --reference, the PSP's id of what it did")
	case r.succeeded && r.amount == 0:
		return errors.New("--succeeded needs --amount, what the PSP shows that it moved")
	case !r.succeeded && (r.reference != "" || r.amount != 0):
		return errors.New("--reference and --amount are for --succeeded")
	}
	return nil
}

func (r resolution) resolve(
	ctx context.Context, db *pgxpool.Pool, id uuid.UUID,
) (d operationDetails, err error) {
	look := func(tx pgx.Tx) (err error) {
		d, err = findOperation(ctx, tx, id)
		return err
	}
	if err := pgx.BeginTxFunc(ctx, db, looks, look); err != nil {
		return d, err
	}
	if err := r.allowed(d); err != nil {
		return d, err
	}

	recorded, err := r.record(ctx, db, d)
	if err != nil {
		return d, err
	}
	switch recorded {
	case payments.Applied, payments.Repeated:
	case payments.Unbookable:
		return d, errors.New("a balance would overflow: nothing was recorded")
	case payments.Locked:
		return d, errors.New("another session keeps its accounts locked: nothing was recorded, try again")
	case payments.NoOperation: // it was found above
		return d, errItsTenantHasLeft
	default:
		return d, errors.New("it has ended otherwise in the meantime: nothing was recorded")
	}

	return d, pgx.BeginTxFunc(ctx, db, looks, look)
}

// allowed refuses what would make Record note a conflict.
func (r resolution) allowed(d operationDetails) error {
	switch {
	case d.EndedAt != nil && d.State == r.state():
		return nil // recording it again changes nothing
	case d.EndedAt != nil:
		return fmt.Errorf("it has ended: %s", d.State)
	case r.succeeded && r.amount != d.AmountMinor:
		return fmt.Errorf("it is about %s, not %s: the PSP moved another amount, which resolve cannot book",
			money(d.AmountMinor, d.Currency), money(r.amount, d.Currency))
	case !d.AskOperator && !r.anyway:
		return errors.New("the worker still tries it, and may end it otherwise: --anyway resolves it now")
	}
	return nil
}

func (r resolution) state() payments.OperationState {
	switch {
	case r.succeeded:
		return payments.Succeeded
	case r.declined:
		return payments.OperationDeclined
	}
	return payments.OperationFailed
}

func (r resolution) record(
	ctx context.Context, db *pgxpool.Pool, d operationDetails,
) (payments.Recorded, error) {
	result := payments.Result{
		OperationID: d.ID, State: r.state(), Reference: r.reference, ResolvedBy: r.by,
	}
	if r.succeeded {
		result.AmountMinor, result.Currency = r.amount, d.Currency
	}

	processor := payments.Processor{DB: db}
	recorded, err := processor.Record(ctx, []payments.Result{result})
	if err != nil {
		return 0, err
	}
	return recorded[0], nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/psp"
)

// reconciliation is what a comparison of the PSP's books with ours found.
type reconciliation struct {
	Charges     int64        `json:"charges"` // in the PSP's books, declined ones included
	Refunds     int64        `json:"refunds"`
	Operations  int64        `json:"operations"` // of ours that succeeded
	InFlight    int64        `json:"in_flight"`
	Differences []difference `json:"differences"`
}

// difference is one line that is not the same on both sides.
type difference struct {
	What        string                 `json:"what"`
	Kind        payments.OperationKind `json:"kind"`
	OperationID string                 `json:"operation_id"`
	PaymentID   string                 `json:"payment_id"`
	Reference   string                 `json:"reference"` // the PSP's
	Ours        string                 `json:"ours"`
	PSPs        string                 `json:"psps"`
}

// What can differ.
const (
	chargedTwice  = "executed twice"
	notOurs       = "not ours"
	notRecorded   = "not recorded"
	endedOtherway = "ended otherwise"
	otherAmount   = "other amount"
	missingThere  = "missing at the PSP"
)

// todo says what to do about a difference.
var todo = []struct{ what, do string }{
	{chargedTwice, "give the second one back at the PSP, then find out how its key was used twice"},
	{notOurs, "somebody else uses our account at the PSP, or made it by hand there"},
	{notRecorded, "oncepay psp retry OPERATION; if that does not help, psp resolve --succeeded"},
	{endedOtherway, "money moved that our books do not have: undo it at the PSP"},
	{otherAmount, "undo the difference at the PSP: what we have recorded does not change"},
	{missingThere, "ask the PSP under the operation's key: our books have money that is not there"},
}

// errDiffer comes after a result that was shown.
var errDiffer = errors.New("the books differ")

type window struct {
	from, to time.Time
	inFlight time.Duration
}

func (o operator) reconcilePSP() *cobra.Command {
	c := &cobra.Command{
		Use:   "psp",
		Short: "Compare the PSP's books with ours, charge by charge, to the minor unit",
		Long: `Reads every charge and every refund in the books of the payment service provider (PSP) and compares
it with ours: what moved there must have completed here and the other way round, with the same amount
and currency, once. It changes nothing. Exit code 2: something differs.

Operations that have not ended count as in flight for --in-flight; later they are a difference if
the PSP has executed them. --from and --to compare the operations decided from one time up to the
other. What the PSP executed and is none of ours is always shown.`,
		Example: "  oncepay reconcile psp\n" +
			"  oncepay reconcile psp --from 2026-03-01 --to 2026-04-01 --json",
	}

	w := window{to: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	program.Flag(c, &w.from, "from", "TIME", "decided at this time or later, in UTC", parseTime)
	program.Flag(c, &w.to, "to", "TIME", "decided before this time, in UTC", parseTime)
	c.Flags().DurationVar(&w.inFlight, "in-flight", 10*time.Minute,
		"how long an operation may take before it is a difference")

	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := config.LoadPSP(o.getenv)
		if err != nil {
			return err
		}
		db, err := o.open(c.Context())
		if err != nil {
			return err
		}
		defer db.Close()

		r := comparison{
			db: db, window: w, progress: c.ErrOrStderr(), said: time.Now(),
			list: psp.NewClient(cfg.PSPURL, cfg.PSPAPIKey, 1).List,
		}
		if err := r.compare(c.Context()); err != nil {
			return err
		}
		if err := program.Show(c, r.found, r.found.print); err != nil {
			return err
		}
		if n := len(r.found.Differences); n > 0 {
			return fmt.Errorf("%w in %d places", errDiffer, n)
		}
		return nil
	}
	return c
}

// parseTime reads a day, or an RFC 3339 time.
func parseTime(s string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("it must be a day such as 2026-03-01, or a time such as 2026-03-01T12:00:00Z")
}

func (r reconciliation) print(w io.Writer) {
	program.Row(w, "at the PSP", fmt.Sprintf("%d charges, %d refunds", r.Charges, r.Refunds))
	program.Row(w, "ours", fmt.Sprintf("%d operations that succeeded", r.Operations))
	program.Row(w, "in flight", r.InFlight)
	program.Row(w, "differences", len(r.Differences))
	if len(r.Differences) == 0 {
		return
	}

	fmt.Fprintln(w)
	program.Row(w, "WHAT", "KIND", "OPERATION", "PAYMENT", "REFERENCE", "OURS", "THE PSP'S")
	seen := map[string]bool{}
	for _, d := range r.Differences {
		seen[d.What] = true
		program.Row(w, d.What, d.Kind, d.OperationID, d.PaymentID, d.Reference, d.Ours, d.PSPs)
	}

	fmt.Fprintln(w)
	for _, t := range todo {
		if seen[t.what] {
			program.Row(w, t.what+":", t.do)
		}
	}
}

// list is psp.Provider.List.
type list func(
	ctx context.Context, kind payments.OperationKind, after string,
) ([]psp.Entry, bool, error)

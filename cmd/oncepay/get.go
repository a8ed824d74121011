package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

func (c caller) get() *cobra.Command {
	get := &cobra.Command{
		Use:   "get ID",
		Short: "Show a payment with its history, an account or a refund",
		Long: `Shows the payment of that id with its history, or else the account, or else the refund. --json
shows the service's answer. With --wait it waits until what goes by card has ended, and shows it as
it is when the time is over.

Exit codes: 0 here it is; 1 the API could not be asked; 2 refused: no such payment, account or
refund of yours, or a bad credential.`,
		Example: "  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab\n" +
			"  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab --json\n" +
			"  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab --wait 10s",
		GroupID: asClient,
	}

	var id uuid.UUID
	program.Argument(get, &id, parseID)
	var wait time.Duration
	waitFlag(get, &wait)

	get.RunE = func(cmd *cobra.Command, _ []string) error {
		// The id does not tell what it is of.
		err := show(cmd, c, "/api/v1/payments/"+id.String(), wait, printHistory)
		if missing(err) {
			err = show(cmd, c, "/api/v1/accounts/"+id.String(), 0, printAccount)
		}
		if missing(err) {
			err = show(cmd, c, "/api/v1/refunds/"+id.String(), wait, printRefund)
		}
		return shown(cmd, err)
	}
	return get
}

// show asks for the T at path and shows it.
func show[T any](
	cmd *cobra.Command, c caller, path string, wait time.Duration, text func(io.Writer, T),
) error {
	var v T
	body, err := c.ask(cmd.Context(), path, wait, &v)
	if err != nil {
		return err
	}
	return program.Show(cmd, body, func(w io.Writer) { text(w, v) })
}

func missing(err error) bool {
	var none *refusal
	return errors.As(err, &none) && none.Status == http.StatusNotFound
}

func printAccount(w io.Writer, a payments.Account) {
	program.Row(w, "account", a.ID)
	program.Row(w, "kind", a.Kind)
	if a.Name != "" {
		program.Row(w, "name", a.Name)
	}
	program.Row(w, "balance", money(a.BalanceMinor, a.Currency))
	program.Row(w, "held", money(a.HeldMinor, a.Currency))
	program.Row(w, "available", money(a.AvailableMinor(), a.Currency))
	program.Row(w, "created", a.CreatedAt)
}

// money names the unit, or 2500 USD would be read as a hundred times as much as it is.
func money(minor int64, currency string) string {
	return fmt.Sprintf("%d %s in minor units", minor, currency)
}

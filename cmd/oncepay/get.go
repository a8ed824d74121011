package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

func (c caller) get() *cobra.Command {
	get := &cobra.Command{
		Use:   "get ID",
		Short: "Show a payment or an account",
		Long: `Shows the payment of that id, or else the account. --json shows the service's answer.

Exit codes: 0 here it is; 1 the API could not be asked; 2 refused: no such payment or account of
yours, or a bad credential.`,
		Example: "  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab\n" +
			"  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab --json",
		GroupID: asClient,
	}

	var id uuid.UUID
	program.Argument(get, &id, parseID)

	get.RunE = func(cmd *cobra.Command, _ []string) error {
		var payment payments.Payment
		body, err := c.ask(cmd.Context(), "/api/v1/payments/"+id.String(), &payment)
		if err == nil {
			return program.Show(cmd, body, func(w io.Writer) { printPayment(w, payment) })
		}

		// The id does not tell a payment from an account.
		var none *refusal
		if !errors.As(err, &none) || none.Status != http.StatusNotFound {
			return shown(cmd, err)
		}

		var account payments.Account
		body, err = c.ask(cmd.Context(), "/api/v1/accounts/"+id.String(), &account)
		if err != nil {
			return shown(cmd, err)
		}

		return program.Show(cmd, body, func(w io.Writer) { printAccount(w, account) })
	}
	return get
}

func printPayment(w io.Writer, p payments.Payment) {
	status := string(p.Status)
	if p.DeclineCode != "" {
		status += ": " + string(p.DeclineCode)
	}

	program.Row(w, "payment", p.ID)
	program.Row(w, "status", status)
	program.Row(w, "amount", money(p.AmountMinor, p.Currency))
	program.Row(w, "from", p.SourceAccount)
	program.Row(w, "to", p.DestinationAccount)

	if p.Description != "" {
		program.Row(w, "description", p.Description)
	}
	if p.ClientReference != "" {
		program.Row(w, "reference", p.ClientReference)
	}

	program.Row(w, "processed", p.ProcessedAt)
}

func printAccount(w io.Writer, a payments.Account) {
	program.Row(w, "account", a.ID)
	program.Row(w, "kind", a.Kind)
	if a.Name != "" {
		program.Row(w, "name", a.Name)
	}
	program.Row(w, "balance", money(a.BalanceMinor, a.Currency))
	program.Row(w, "created", a.CreatedAt)
}

// money names the unit, or 2500 USD would be read as a hundred times as much as it is.
func money(minor int64, currency string) string {
	return fmt.Sprintf("%d %s in minor units", minor, currency)
}

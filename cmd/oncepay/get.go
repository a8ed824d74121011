package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

func (c caller) get() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a payment or an account",
		Long: `Shows the payment of that id, or else the account. --json shows the service's answer.

Exit codes: 0 here it is; 1 the API could not be asked; 2 refused: no such payment or account of
yours, or a bad credential.`,
		Example: "  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab\n" +
			"  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab --json",
		GroupID: asClient,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := argument("ID", args[0], parseID)
			if err != nil {
				return err
			}
			api, err := c.api()
			if err != nil {
				return err
			}

			// The id does not tell a payment from an account: try one, then the other.
			var payment payments.Payment
			a, found, err := ask(cmd.Context(), api, "/api/v1/payments/"+id.String(), &payment)
			if err == nil && !found && a.Status == http.StatusNotFound {
				var account payments.Account
				a, found, err = ask(cmd.Context(), api, "/api/v1/accounts/"+id.String(), &account)
				if found {
					return program.Show(cmd, json.RawMessage(a.Body),
						func(w io.Writer) { printAccount(w, account) })
				}
			}

			switch {
			case err != nil:
				return err
			case !found:
				return refused(cmd, a)
			}
			return program.Show(cmd, json.RawMessage(a.Body),
				func(w io.Writer) { printPayment(w, payment) })
		},
	}
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

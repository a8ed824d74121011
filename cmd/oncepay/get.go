package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/oncepay/oncepay/internal/payments"
)

const getUsage = `Usage: oncepay get [flags] ID

Shows the payment of that id, or else the account. -json shows the service's answer.

Exit codes: 0 here it is; 1 the API could not be asked; 2 refused: no such payment or account of yours, or a bad credential.

Examples:
  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab
  oncepay get 0198a6de-5c1f-7000-8000-0123456789ab -json
`

func (c *call) get(ctx context.Context, args []string) error {
	f := newFlags("get", getUsage)
	found, err := f.parse(c, args, "ID")
	if err != nil {
		return err
	}

	check := checks{flags: f}
	id := check.id("ID", found[0]).String()
	if err := check.err(); err != nil {
		return err
	}

	api, err := c.api()
	if err != nil {
		return err
	}

	// The id does not tell a payment from an account: try one, then the other.
	var payment payments.Payment
	a, there, err := ask(ctx, api, "/api/v1/payments/"+id, &payment)
	switch {
	case err != nil:
		return err
	case there:
		return c.show(f, json.RawMessage(a.Body), func(w io.Writer) { printPayment(w, payment) })
	case a.Status != http.StatusNotFound:
		return c.refused(f, a)
	}

	var account payments.Account
	a, there, err = ask(ctx, api, "/api/v1/accounts/"+id, &account)
	switch {
	case err != nil:
		return err
	case there:
		return c.show(f, json.RawMessage(a.Body), func(w io.Writer) { printAccount(w, account) })
	}

	return c.refused(f, a)
}

func printPayment(w io.Writer, p payments.Payment) {
	status := string(p.Status)
	if p.DeclineCode != "" {
		status += ": " + string(p.DeclineCode)
	}

	row(w, "payment", p.ID)
	row(w, "status", status)
	row(w, "amount", money(p.AmountMinor, p.Currency))
	row(w, "from", p.SourceAccount)
	row(w, "to", p.DestinationAccount)

	if p.Description != "" {
		row(w, "description", p.Description)
	}
	if p.ClientReference != "" {
		row(w, "reference", p.ClientReference)
	}

	row(w, "processed", p.ProcessedAt)
}

func printAccount(w io.Writer, a payments.Account) {
	row(w, "account", a.ID)
	row(w, "kind", a.Kind)
	if a.Name != "" {
		row(w, "name", a.Name)
	}
	row(w, "balance", money(a.BalanceMinor, a.Currency))
	row(w, "created", a.CreatedAt)
}

package main

import (
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
)

// order is the body of a payment, as in api/openapi.yaml.
type order struct {
	AmountMinor        int64     `json:"amount_minor"`
	Currency           string    `json:"currency"`
	SourceAccount      uuid.UUID `json:"source_account"`
	DestinationAccount uuid.UUID `json:"destination_account"`
	Description        string    `json:"description,omitempty"`
	ClientReference    string    `json:"client_reference,omitempty"`
}

func (c caller) pay() *cobra.Command {
	pay := &cobra.Command{
		Use:   "pay",
		Short: "Make a payment, and repeat it until its outcome is known",
		Long: `Makes a payment, and repeats it under the same key until its outcome is known. Without --key it
makes a key and writes it to standard error before the first attempt. Whatever then happens, here
or there, the same command with that --key finishes it: the payment is made once. --json shows the
service's answer, a refusal too.

Exit codes: 0 paid, now or before; 1 not tried; 2 refused, the answer stands; 3 unknown, or paid and
not shown: repeat it with the same key. A refusal that is not stored under the key, such as a
revoked credential, is 3 with --key: an earlier run may have paid.`,
		Example: `  oncepay pay --from 0198a6de-5c1f-7000-8000-0123456789ab \
    --to 0198a6de-5c20-7000-8000-0123456789ab --amount 2500 --currency USD
  oncepay pay --key order-1001 --reference order-1001 --timeout 2m \
    --from 0198… --to 0198… --amount 2500 --currency USD`,
		GroupID: asClient,
	}

	var o order
	program.Flag(pay, &o.SourceAccount, "from", "ACCOUNT", "account that pays", parseID)
	program.Flag(pay, &o.DestinationAccount, "to", "ACCOUNT", "account that is paid", parseID)
	program.Flag(pay, &o.AmountMinor, "amount", "AMOUNT", "minor units: 2500 is 25.00 USD",
		parseAmount)
	program.Flag(pay, &o.Currency, "currency", "CODE", "ISO 4217 code", parseCurrency)
	program.Flag(pay, &o.Description, "description", "TEXT", "a text for people", parseText)
	program.Flag(pay, &o.ClientReference, "reference", "TEXT", "your own reference", parseText)
	program.Require(pay, "from", "to", "amount", "currency")

	var k keyed
	k.flags(pay)

	pay.RunE = func(cmd *cobra.Command, _ []string) error {
		return post(cmd, c, k, "/api/v1/payments", o, printPayment)
	}
	return pay
}

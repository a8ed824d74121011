package main

import (
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
)

// captureOrder is the body of a capture, as in api/openapi.yaml.
type captureOrder struct {
	AmountMinor int64 `json:"amount_minor,omitempty"` // without it: all
}

func (c caller) capture() *cobra.Command {
	capture := &cobra.Command{
		Use:   "capture PAYMENT",
		Short: "Capture an authorized payment: move what was held, or a part of it",
		Long: `Captures a payment that pay --hold has authorized: the money moves. A payment is captured once:
what --amount leaves of the hold is released. ` + aboutKeys,
		Example: `  oncepay capture 0198a6de-5c1f-7000-8000-0123456789ab
  oncepay capture 0198a6de-5c1f-7000-8000-0123456789ab --amount 2000 --if-version 1 --key order-1001-capture`,
		GroupID: asClient,
	}

	var t target
	t.flags(capture)

	var o captureOrder
	program.Flag(capture, &o.AmountMinor, "amount", "AMOUNT",
		"minor units: 2500 is 25.00 USD (without it all that is held)", parseAmount)

	var k keyed
	k.flags(capture)

	capture.RunE = func(cmd *cobra.Command, _ []string) error {
		return post(cmd, c, k, t.change("capture", o), printPayment)
	}
	return capture
}

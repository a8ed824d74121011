package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

// refundOrder is the body of a refund, as in api/openapi.yaml.
type refundOrder struct {
	AmountMinor int64  `json:"amount_minor,omitempty"` // without it: all that is left
	Reason      string `json:"reason,omitempty"`
}

func (c caller) refund() *cobra.Command {
	refund := &cobra.Command{
		Use:   "refund PAYMENT",
		Short: "Refund a completed payment: move its money back, or a part of it",
		Long: `Refunds a completed payment: money moves back to the account that paid. There may be many refunds,
in all no more than was captured. What came by card goes back to it: such a refund is processing
until the payment service provider has said what became of it; --wait waits for that. ` + aboutKeys + aboutWait,
		Example: `  oncepay refund 0198a6de-5c1f-7000-8000-0123456789ab
  oncepay refund 0198a6de-5c1f-7000-8000-0123456789ab --amount 500 --reason "one book came damaged" \
    --key order-1001-refund-1`,
		GroupID: asClient,
	}

	var t target
	t.flags(refund)

	var o refundOrder
	program.Flag(refund, &o.AmountMinor, "amount", "AMOUNT",
		"minor units: 2500 is 25.00 USD (without it all that is left)", parseAmount)
	program.Flag(refund, &o.Reason, "reason", "TEXT", "a text for people", parseText)

	var k keyed
	k.flags(refund)
	var wait time.Duration
	waitFlag(refund, &wait)

	refund.RunE = func(cmd *cobra.Command, _ []string) error {
		ch := t.change("refunds", o)
		ch.wait = wait
		return post(cmd, c, k, ch, printRefund)
	}
	return refund
}

func printRefund(w io.Writer, r payments.Refund) {
	program.Row(w, "refund", r.ID)
	program.Row(w, "status", withReason(r.Status, r.DeclineCode))
	program.Row(w, "amount", money(r.AmountMinor, r.Currency))
	program.Row(w, "payment", r.PaymentID)
	program.Row(w, "from", r.SourceAccount)
	program.Row(w, "to", r.DestinationAccount)

	if r.Reason != "" {
		program.Row(w, "reason", r.Reason)
	}

	program.Row(w, "processed", r.ProcessedAt)
	if r.SettledAt != nil {
		program.Row(w, "settled", r.SettledAt)
	}
}

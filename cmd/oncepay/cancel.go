package main

import "github.com/spf13/cobra"

func (c caller) cancel() *cobra.Command {
	cancel := &cobra.Command{
		Use:   "cancel PAYMENT",
		Short: "Cancel an authorized payment: release what was held",
		Long: `Cancels a payment that pay --hold has authorized: its money is available again, nothing moves. What
was captured cannot be canceled, only refunded. ` + aboutKeys,
		Example: `  oncepay cancel 0198a6de-5c1f-7000-8000-0123456789ab
  oncepay cancel 0198a6de-5c1f-7000-8000-0123456789ab --key order-1001-cancel`,
		GroupID: asClient,
	}

	var t target
	t.flags(cancel)

	var k keyed
	k.flags(cancel)

	cancel.RunE = func(cmd *cobra.Command, _ []string) error {
		return post(cmd, c, k, t.change("cancel", struct{}{}), printPayment)
	}
	return cancel
}

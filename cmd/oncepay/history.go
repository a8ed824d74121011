package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

// history is a payment with its newest refunds, as the service shows one.
type history struct {
	payments.Payment
	Refunds []payments.Refund `json:"refunds"` // newest first
}

func printHistory(w io.Writer, h history) {
	printPayment(w, h.Payment)
	if h.Version == 1 {
		return // it says all that happened
	}

	fmt.Fprintln(w)
	program.Row(w, "VERSION", "EVENT", "AMOUNT", "AT", "REFUND")

	first := int64(2) // version of the first refund
	switch {
	case h.PaymentMethod != nil:
		program.Row(w, 1, "payment.processing", h.AmountMinor, h.ProcessedAt, "")
		program.Row(w, 2, "payment."+string(h.Status), h.AmountMinor, h.SettledAt, "")
		first = 3
	case h.AuthorizationExpiresAt == nil:
		program.Row(w, 1, "payment.completed", h.AmountMinor, h.ProcessedAt, "")
	default:
		program.Row(w, 1, "payment.authorized", h.AmountMinor, h.ProcessedAt, "")
		program.Row(w, 2, "payment."+string(h.Status), ended(h.Payment), h.AuthorizationEndedAt, "")
		first = 3
	}

	for _, r := range slices.Backward(h.Refunds) {
		// Versions have no gaps, so the first one tells what the service left out. By card, the end of a
		// refund has a version, too, which the refund does not have.
		if left := r.PaymentVersion - first; left > 0 && h.PaymentMethod == nil {
			program.Row(w, "…", fmt.Sprintf("%d earlier refunds", left), "", "", "")
		}
		first = r.PaymentVersion + 1
		program.Row(w, r.PaymentVersion, "refund."+string(r.Status), r.AmountMinor, r.ProcessedAt, r.ID)
	}
}

// ended is the amount of the event that ended the authorization: what was captured, or what was
// released.
func ended(p payments.Payment) int64 {
	if p.Status == payments.Completed {
		return p.CapturedMinor
	}
	return p.AmountMinor
}

func printPayment(w io.Writer, p payments.Payment) {
	program.Row(w, "payment", p.ID)
	program.Row(w, "status", withReason(p.Status, p.DeclineCode))
	if p.PaymentMethod != nil {
		program.Row(w, "method", p.PaymentMethod.Type)
	}
	program.Row(w, "amount", money(p.AmountMinor, p.Currency))

	// What the amount does not say already.
	if p.Status == payments.Completed && p.CapturedMinor != p.AmountMinor {
		program.Row(w, "captured", money(p.CapturedMinor, p.Currency))
	}
	if p.RefundedMinor > 0 {
		program.Row(w, "refunded", money(p.RefundedMinor, p.Currency))
	}
	if p.RefundingMinor > 0 {
		program.Row(w, "refunding", money(p.RefundingMinor, p.Currency))
	}
	if back := p.RefundedMinor + p.RefundingMinor; back > 0 {
		program.Row(w, "left", money(p.CapturedMinor-back, p.Currency))
	}

	program.Row(w, "from", p.SourceAccount)
	program.Row(w, "to", p.DestinationAccount)

	if p.Description != "" {
		program.Row(w, "description", p.Description)
	}
	if p.ClientReference != "" {
		program.Row(w, "reference", p.ClientReference)
	}

	program.Row(w, "processed", p.ProcessedAt)
	if p.Status == payments.Authorized {
		program.Row(w, "expires", p.AuthorizationExpiresAt)
	}
	if p.SettledAt != nil {
		program.Row(w, "settled", p.SettledAt)
	}
	program.Row(w, "version", p.Version)
}

// withReason is a status, and why it is declined or has failed.
func withReason(s payments.Status, code payments.Code) string {
	if code == "" {
		return string(s)
	}
	return string(s) + ": " + string(code)
}

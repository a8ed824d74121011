package httpapi

import (
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// Render returns the answer to an outcome: the bytes that are stored before COMMIT, sent after it
// and sent again to every repeat. So they hold nothing of the attempt: a refusal is a problem
// without request_id, and its instance is the payment or the collection.
func Render(o payments.Outcome) idempotency.Response {
	location := locationOf(o)

	switch {
	case o.Refusal != nil:
		p := refused(o)
		// What was declined can be fetched.
		return idempotency.Response{
			Status: p.Status, ContentType: problemJSON, Location: location, Body: encode(p),
		}
	case location != "":
		return idempotency.Response{
			Status: http.StatusCreated, ContentType: applicationJSON, Location: location, Body: o.JSON,
		}
	case o.Payment != nil:
		return idempotency.Response{Status: http.StatusOK, ContentType: applicationJSON, Body: o.JSON}
	}
	panic("httpapi: an outcome without account, payment, refund or refusal")
}

// locationOf returns the path of what was made; empty: nothing was, at most a payment changed.
func locationOf(o payments.Outcome) string {
	switch {
	case o.Refund != nil:
		return refundsPath + "/" + o.Refund.ID.String()
	case o.Payment != nil && o.Payment.Version == 1:
		return pathOf(o.Payment.ID)
	case o.Account != nil:
		return accountsPath + "/" + o.Account.ID.String()
	}
	return ""
}

func pathOf(payment uuid.UUID) string { return paymentsPath + "/" + payment.String() }

func refused(o payments.Outcome) *problem {
	r := o.Refusal
	p := refuse(string(r.Code), "%s", reason(o))

	// Not the path of the attempt: these bytes answer every attempt.
	p.Instance = paymentsPath
	switch {
	case r.Code == payments.SystemExists, r.Code == payments.ClearingExists:
		p.Instance = accountsPath
	case o.Payment != nil: // declined
		p.PaymentID, p.Instance = &o.Payment.ID, pathOf(o.Payment.ID)
	case r.PaymentID != uuid.Nil:
		p.Instance = pathOf(r.PaymentID)
	}

	if r.Status != "" { // the payment of a later command, if there is one
		p.PaymentID, p.PaymentStatus, p.PaymentVersion = &r.PaymentID, r.Status, r.Version
	}
	if r.Code == payments.AmountExceedsAuthorized || r.Code == payments.AmountExceedsCaptured {
		p.LeftMinor = &r.LeftMinor
	}
	if o.Refund != nil {
		p.RefundID = &o.Refund.ID
	}
	return p
}

func reason(o payments.Outcome) string {
	r := o.Refusal
	about := "Account " + r.Account.String()

	switch r.Code {
	case payments.InsufficientFunds:
		if o.Refund != nil {
			return about + " holds less than the amount. " +
				"The refund was recorded as declined; no money moved."
		}
		return about + " holds less than the amount. " +
			"The payment was recorded as declined; no money moved."
	case payments.UnknownAccount:
		return about + " does not exist. No money moved."
	case payments.CurrencyMismatch:
		return about + " is kept in another currency than the payment's. No money moved."
	case payments.FundingForbidden:
		return about + " is a system or a clearing account: " +
			"paying from it needs the scope accounts:fund. No money moved."
	case payments.AmountOutOfRange:
		return about + " cannot hold the resulting balance. No money moved."
	case payments.SystemExists:
		return "The tenant already has a system account in this currency."
	case payments.ClearingExists:
		return "The tenant already has a clearing account in this currency."
	case payments.CardsNotEnabled:
		return "The tenant has no clearing account in this currency: " +
			"the operator opens one to enable cards. The card was not charged."
	case payments.SameAccount:
		return about + " is the clearing account, from which payments by card are paid. " +
			"The card was not charged."

	case payments.UnknownPayment:
		return errNotFound.Detail
	case payments.VersionMismatch:
		return fmt.Sprintf("The payment has version %d, and is %s. Nothing was done.", r.Version, r.Status)
	case payments.InvalidState:
		return fmt.Sprintf("The payment is %s. Nothing was done.", r.Status)
	case payments.AuthorizationExpired:
		return "The time to capture or cancel the payment is over. No money moved; " +
			"what it held is free again, or will be in a moment."
	case payments.AmountExceedsAuthorized:
		return fmt.Sprintf("At most %d can be captured. No money moved.", r.LeftMinor)
	case payments.AmountExceedsCaptured:
		return fmt.Sprintf("At most %d can still be refunded. No money moved.", r.LeftMinor)
	}
	return "No money moved."
}

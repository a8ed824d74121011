package httpapi

import (
	"fmt"
	"net/http"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// Render makes the answer to an outcome: the bytes that are stored before COMMIT, sent after it and sent again to every
// repeat. So nothing of the attempt stands in them: a refusal is a problem without request_id, and its instance is the
// declined payment, or the collection that was posted to.
func Render(o payments.Outcome) idempotency.Response {
	switch {
	case o.Refusal != nil:
		r := refused(o).response()
		if o.Payment != nil {
			r.Location = paymentsPath + "/" + o.Payment.ID.String() // it was declined, and can be looked at
		}
		return r
	case o.Payment != nil:
		return created(paymentsPath+"/"+o.Payment.ID.String(), o.Payment)
	case o.Account != nil:
		return created(accountsPath+"/"+o.Account.ID.String(), o.Account)
	}
	panic("httpapi: an outcome without account, payment or refusal")
}

func created(location string, v any) idempotency.Response {
	return idempotency.Response{Status: http.StatusCreated, ContentType: applicationJSON, Location: location, Body: encode(v)}
}

func refused(o payments.Outcome) *problem {
	p := refuse(string(o.Refusal.Code), "%s", reason(o.Refusal))
	p.Instance = paymentsPath
	if o.Refusal.Code == payments.SystemExists {
		p.Instance = accountsPath
	}
	if o.Payment != nil {
		p.PaymentID = &o.Payment.ID
		p.Instance = paymentsPath + "/" + o.Payment.ID.String()
	}
	return p
}

func reason(r *payments.Refusal) string {
	switch r.Code {
	case payments.InsufficientFunds:
		return fmt.Sprintf("Account %s has less than the amount. The payment was recorded as declined; no money moved.", r.Account)
	case payments.UnknownAccount:
		return fmt.Sprintf("There is no account %s. No money moved.", r.Account)
	case payments.CurrencyMismatch:
		return fmt.Sprintf("Account %s is kept in another currency than the payment's. No money moved.", r.Account)
	case payments.FundingForbidden:
		return fmt.Sprintf("Account %s is a system account: to take money from it a credential needs the scope accounts:fund. No money moved.", r.Account)
	case payments.AmountOutOfRange:
		return fmt.Sprintf("The balance of account %s would leave the range of 64-bit integers. No money moved.", r.Account)
	case payments.SystemExists:
		return "The tenant has a system account in this currency already."
	}
	return "No money moved."
}

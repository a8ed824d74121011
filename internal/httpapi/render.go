package httpapi

import (
	"net/http"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// Render returns the answer to an outcome: the bytes that are stored before COMMIT, sent after it
// and sent again to every repeat. So they hold nothing of the attempt: a refusal is a problem
// without request_id, and its instance is the declined payment or the collection.
func Render(o payments.Outcome) idempotency.Response {
	switch {
	case o.Refusal != nil:
		p := refused(o)
		r := idempotency.Response{Status: p.Status, ContentType: problemJSON, Body: encode(p)}
		if o.Payment != nil {
			// A declined payment can be fetched.
			r.Location = paymentsPath + "/" + o.Payment.ID.String()
		}
		return r
	case o.Payment != nil:
		return created(paymentsPath+"/"+o.Payment.ID.String(), o.JSON)
	case o.Account != nil:
		return created(accountsPath+"/"+o.Account.ID.String(), o.JSON)
	}
	panic("httpapi: an outcome without account, payment or refusal")
}

func created(location string, body []byte) idempotency.Response {
	return idempotency.Response{
		Status:      http.StatusCreated,
		ContentType: applicationJSON,
		Location:    location,
		Body:        body,
	}
}

func refused(o payments.Outcome) *problem {
	p := refuse(string(o.Refusal.Code), "%s", reason(o.Refusal))

	// Not the path of the attempt: these bytes answer every attempt.
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
	about := "Account " + r.Account.String()

	switch r.Code {
	case payments.InsufficientFunds:
		return about + " holds less than the amount. " +
			"The payment was recorded as declined; no money moved."
	case payments.UnknownAccount:
		return about + " does not exist. No money moved."
	case payments.CurrencyMismatch:
		return about + " is kept in another currency than the payment's. No money moved."
	case payments.FundingForbidden:
		return about + " is a system account: " +
			"paying from it needs the scope accounts:fund. No money moved."
	case payments.AmountOutOfRange:
		return about + " cannot hold the resulting balance. No money moved."
	case payments.SystemExists:
		return "The tenant already has a system account in this currency."
	}
	return "No money moved."
}

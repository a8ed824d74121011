package fakepsp

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// order is the body of a POST: what is to be charged or refunded.
type order interface {
	// check looks at the body alone.
	check() *problem
	// token is that of the card, if the books know it.
	token(b *books) string
	// execute decides what goes into the books. With a problem, nothing does.
	execute(b *books, decline bool, f Faults, now time.Time) (record, *problem)
}

type chargeOrder struct {
	Amount        int64             `json:"amount"`
	Currency      string            `json:"currency"`
	PaymentMethod string            `json:"payment_method"`
	Metadata      map[string]string `json:"metadata"`
}

type refundOrder struct {
	Charge   string            `json:"charge"`
	Amount   int64             `json:"amount"`
	Metadata map[string]string `json:"metadata"`
}

// digest tells requests apart, whatever order and spaces their JSON had.
func digest(path string, o order) string {
	body, _ := json.Marshal(o) // strings and numbers: cannot fail
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s", path, body))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

var currency = regexp.MustCompile(`^[a-z]{3}$`)

// maxAmount is the ten digits that card networks carry.
const maxAmount = 9_999_999_999

func (o chargeOrder) check() *problem {
	switch {
	case o.Amount < 1 || o.Amount > maxAmount:
		return invalid("amount_invalid", "amount must be 1 to 9999999999, in minor units")
	case !currency.MatchString(o.Currency):
		return invalid("currency_invalid", "currency must be three small letters, such as usd")
	case !strings.HasPrefix(o.PaymentMethod, "tok_"):
		return invalid("payment_method_invalid", "payment_method must be a card token, tok_…")
	}
	return nil
}

func (o chargeOrder) token(*books) string { return o.PaymentMethod }

func (o chargeOrder) execute(_ *books, decline bool, f Faults, now time.Time) (record, *problem) {
	if o.PaymentMethod == tokenInvalid {
		return record{}, invalid("payment_method_invalid", "no card has this token")
	}

	c := Charge{
		ID: "ch_" + rand.Text(), Object: "charge", Amount: o.Amount, Currency: o.Currency,
		Status: succeeded, PaymentMethod: o.PaymentMethod, Metadata: o.Metadata, Created: now.Unix(),
	}

	if c.Metadata == nil {
		c.Metadata = map[string]string{}
	}

	tooMuch := f.DeclineAbove > 0 && o.Amount > f.DeclineAbove
	if decline || tooMuch || o.PaymentMethod == tokenDeclined {
		c.Status = declined
	}
	return record{Charge: &c}, nil
}

func (o refundOrder) check() *problem {
	switch {
	case o.Charge == "":
		return invalid("parameter_missing", "charge must be the id of a charge, ch_…")
	case o.Amount < 1:
		return invalid("amount_invalid", "amount must be at least 1, in minor units")
	}
	return nil
}

func (o refundOrder) token(b *books) string {
	c, _ := b.charge(o.Charge)
	return c.PaymentMethod
}

func (o refundOrder) execute(b *books, _ bool, _ Faults, now time.Time) (record, *problem) {
	c, found := b.charge(o.Charge)
	if !found {
		return record{}, &problem{http.StatusNotFound, invalidRequest, "resource_missing",
			"there is no such charge"}
	}
	if c.Status != succeeded {
		return record{}, invalid("charge_not_refundable", "the charge was declined")
	}

	r := Refund{
		ID: "re_" + rand.Text(), Object: "refund", Charge: c.ID, Amount: o.Amount,
		Currency: c.Currency, Status: succeeded, Metadata: o.Metadata, Created: now.Unix(),
	}

	if r.Metadata == nil {
		r.Metadata = map[string]string{}
	}

	// A refund that is declined gives nothing back, so it needs nothing left of the charge.
	if c.PaymentMethod == tokenRefundDeclined {
		r.Status = declined
		return record{Refund: &r}, nil
	}

	if !b.reserve(c.ID, o.Amount) {
		return record{}, invalid("amount_too_large", "amount is more than is left of the charge")
	}
	return record{Refund: &r}, nil
}

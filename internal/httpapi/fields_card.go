package httpapi

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/strictjson"
)

// cardMethod is payment_method as the fingerprint has it.
type cardMethod struct {
	Type  string `json:"type"`
	Token string `json:"token"`
}

// maxCardToken bounds what the PSP's page gave the client in place of a card.
const maxCardToken = 255

// payer reads who pays: an account of the tenant, or a card.
func (f *fields) payer() (source uuid.UUID, card string) {
	method, byCard := f.get("payment_method")
	_, byAccount := f.get("source_account")

	switch {
	case byCard && byAccount:
		f.fail("invalid-field",
			"Send source_account or payment_method, not both.", "payment_method")
	case byCard:
		return uuid.Nil, f.card(method)
	case !byAccount:
		f.fail("invalid-field",
			"source_account is missing. To pay by card, send payment_method.", "source_account")
	default:
		return f.account("source_account"), ""
	}
	return uuid.Nil, ""
}

// card reads the token of {"type":"card","token":"tok_…"}. There are no other methods yet.
func (f *fields) card(v strictjson.Value) (token string) {
	const name = "payment_method"
	if v.Kind != strictjson.Object {
		f.fail("invalid-field", name+` must be an object such as {"type":"card","token":"tok_…"}.`, name)
		return ""
	}

	var typed, there bool
	for _, m := range v.Members {
		switch m.Name {
		case "type":
			typed = m.Value.Kind == strictjson.String && m.Value.Text == "card"
		case "token":
			token = m.Value.Text
			there = m.Value.Kind == strictjson.String && isCardToken(token)
		default:
			f.fail("unknown-field",
				fmt.Sprintf("%q is not a member of %s.", short(m.Name), name), name, m.Name)
		}
	}

	if !typed {
		f.fail("invalid-field", name+".type must be card.", name, "type")
	}
	if !there { // it is not quoted: a client may send the number of a card by mistake
		f.fail("invalid-field", fmt.Sprintf("%s.token must be the token that the PSP gave for the card, "+
			"1 to %d visible ASCII characters.", name, maxCardToken), name, "token")
	}
	return token
}

func isCardToken(s string) bool {
	for i := range len(s) {
		if s[i] < '!' || s[i] > '~' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= maxCardToken
}

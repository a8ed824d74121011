package httpapi

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
)

// decoder turns a body into a command about the target, and into the canonical bytes from which the
// fingerprint is made. Bodies that ask for the same thing give the same bytes, whatever their white
// space and order. The credential's rights are left out, so a repeat under a credential with other
// scopes is a repeat. When a command gains a member, its absence must give the same bytes as
// before, or a deploy turns repeats in flight into 422.
//
// The target comes from the path and If-Match. It is not in these bytes: the fingerprint has it as
// parameters of the route, see paramsOf.
type decoder func(target payments.Target, body []byte) (payments.Command, []byte, error)

// paymentDecoder returns the decoder of payments, whose authorizations last at least that long.
func paymentDecoder(least time.Duration) decoder {
	return func(_ payments.Target, body []byte) (payments.Command, []byte, error) {
		return decodePayment(body, least)
	}
}

func decodePayment(body []byte, least time.Duration) (payments.Command, []byte, error) {
	f, err := newFields(body)
	if err != nil {
		return nil, nil, err
	}

	// In the order in which mistakes are reported.
	c := payments.CreatePayment{
		AmountMinor: f.amount("amount_minor"),
		Currency:    f.currency("currency"),
	}
	c.SourceAccount, c.Card = f.payer()
	c.DestinationAccount = f.account("destination_account")
	c.Description = f.text("description", 500, true)
	c.Metadata = f.metadata("metadata")
	c.ClientReference = f.text("client_reference", 255, false)
	c.Authorization = f.authorization(least)

	// What is wrong with several members together. Two that are missing are both uuid.Nil.
	if c.SourceAccount == c.DestinationAccount && c.SourceAccount != uuid.Nil {
		f.fail("same-account",
			"source_account and destination_account must differ.", "destination_account")
	}
	if _, byCard := f.get("payment_method"); byCard && c.Authorization > 0 {
		f.fail("invalid-field", "A payment by card cannot be held: omit capture.", "capture")
	}
	if err := f.err(); err != nil {
		return nil, nil, err
	}

	// omitempty: a member that is absent and one that is empty ask for the same. A payment that moves
	// its money at once has neither of the last two.
	capture := ""
	if c.Authorization > 0 {
		capture = captureManual
	}
	var method *cardMethod
	from := &c.SourceAccount
	if c.Card != "" {
		from, method = nil, &cardMethod{"card", c.Card}
	}
	canonical, err := json.Marshal(struct {
		AmountMinor        int64             `json:"amount_minor"`
		Currency           string            `json:"currency"`
		SourceAccount      *uuid.UUID        `json:"source_account,omitempty"`
		DestinationAccount uuid.UUID         `json:"destination_account"`
		Description        string            `json:"description,omitempty"`
		Metadata           map[string]string `json:"metadata,omitempty"` // sorted by json.Marshal
		ClientReference    string            `json:"client_reference,omitempty"`
		Capture            string            `json:"capture,omitempty"`
		Authorization      int64             `json:"authorization_seconds,omitempty"`
		PaymentMethod      *cardMethod       `json:"payment_method,omitempty"`
	}{
		c.AmountMinor, c.Currency, from, c.DestinationAccount,
		c.Description, c.Metadata, c.ClientReference,
		capture, int64(c.Authorization / time.Second), method,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("encode payment for its fingerprint: %w", err)
	}
	return c, canonical, nil
}

// decodeAccount only opens customer accounts: the others are where money comes from, so the operator
// opens them.
func decodeAccount(_ payments.Target, body []byte) (payments.Command, []byte, error) {
	f, err := newFields(body)
	if err != nil {
		return nil, nil, err
	}

	c := payments.CreateAccount{
		Kind:     payments.Customer,
		Currency: f.currency("currency"),
		Name:     f.text("name", 100, false),
	}
	if err := f.err(); err != nil {
		return nil, nil, err
	}

	canonical, err := json.Marshal(struct {
		Currency string `json:"currency"`
		Name     string `json:"name,omitempty"`
	}{c.Currency, c.Name})
	if err != nil {
		return nil, nil, fmt.Errorf("encode account for its fingerprint: %w", err)
	}
	return c, canonical, nil
}

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

// order is the body of a payment, as in api/openapi.yaml.
type order struct {
	AmountMinor        int64          `json:"amount_minor"`
	Currency           string         `json:"currency"`
	SourceAccount      *uuid.UUID     `json:"source_account,omitempty"`
	PaymentMethod      *paymentMethod `json:"payment_method,omitempty"`
	DestinationAccount uuid.UUID      `json:"destination_account"`
	Description        string         `json:"description,omitempty"`
	ClientReference    string         `json:"client_reference,omitempty"`

	// Of a payment that is held for a capture.
	Capture              string `json:"capture,omitempty"`
	AuthorizationSeconds int64  `json:"authorization_seconds,omitempty"`
}

// paymentMethod is what the money comes by if not from an account.
type paymentMethod struct {
	Type  string `json:"type"`
	Token string `json:"token"`
}

func (c caller) pay() *cobra.Command {
	pay := &cobra.Command{
		Use:   "pay",
		Short: "Make a payment from an account or by card, or hold its money for a capture",
		Long: `Makes a payment. With --hold its money is held until you capture it or cancel the payment, or the
authorization expires. By card it is processing until the payment service provider has said what
became of it; --wait waits for that. ` + aboutKeys + aboutWait,
		Example: `  oncepay pay --from 0198a6de-5c1f-7000-8000-0123456789ab \
    --to 0198a6de-5c20-7000-8000-0123456789ab --amount 2500 --currency USD
  oncepay pay --key order-1001 --reference order-1001 --timeout 2m \
    --from 0198… --to 0198… --amount 2500 --currency USD
  oncepay pay --hold --hold-for 24h --from 0198… --to 0198… --amount 2500 --currency USD
  oncepay pay --card tok_visa --wait 10s --to 0198… --amount 2500 --currency USD`,
		GroupID: asClient,
	}

	var o order
	var from uuid.UUID
	var card string
	program.Flag(pay, &from, "from", "ACCOUNT", "account that pays", parseID)
	program.Flag(pay, &card, "card", "TOKEN", "token of the card that pays, instead of --from", parseCard)
	program.Flag(pay, &o.DestinationAccount, "to", "ACCOUNT", "account that is paid", parseID)
	program.Flag(pay, &o.AmountMinor, "amount", "AMOUNT", "minor units: 2500 is 25.00 USD",
		parseAmount)
	program.Flag(pay, &o.Currency, "currency", "CODE", "ISO 4217 code", parseCurrency)
	program.Flag(pay, &o.Description, "description", "TEXT", "a text for people", parseText)
	program.Flag(pay, &o.ClientReference, "reference", "TEXT", "your own reference", parseText)
	var hold bool
	var holdFor time.Duration
	pay.Flags().BoolVar(&hold, "hold", false, "hold the money for a capture")
	program.Flag(pay, &holdFor, "hold-for", "DURATION", fmt.Sprintf(
		"when the hold expires, up to %s (default %s)",
		hours(payments.MaxAuthorization), hours(payments.DefaultAuthorization)), parseHold)
	program.Require(pay, "to", "amount", "currency")

	var k keyed
	k.flags(pay)
	var wait time.Duration
	waitFlag(pay, &wait)

	pay.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case (from == uuid.Nil) == (card == ""):
			return errors.New("either --from or --card is needed")
		case card != "" && hold:
			return errors.New("--hold needs --from: a payment by card cannot be held")
		case holdFor > 0 && !hold:
			return errors.New("--hold-for needs --hold")
		case card != "":
			o.PaymentMethod = &paymentMethod{"card", card}
		default:
			o.SourceAccount = &from
		}
		if hold {
			o.Capture, o.AuthorizationSeconds = "manual", int64(holdFor/time.Second)
		}

		return post(cmd, c, k, change{path: "/api/v1/payments", body: o, wait: wait}, printPayment)
	}
	return pay
}

// parseCard refuses what looks like the number of a card: that is for the PSP's page only, and would
// end up in the shell's history.
func parseCard(s string) (string, error) {
	if s == "" || strings.Trim(s, "0123456789 -") == "" {
		return "", errors.New("it must be the token that the payment service provider gave for the card")
	}
	return s, nil
}

// parseHold leaves the shortest authorization to the service, which may be set to allow less.
func parseHold(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 || d > payments.MaxAuthorization || d%time.Second != 0 {
		return 0, fmt.Errorf("it must be a duration in whole seconds, such as 24h, up to %s",
			hours(payments.MaxAuthorization))
	}
	return d, nil
}

func hours(d time.Duration) string { return fmt.Sprintf("%dh", d/time.Hour) }

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

const payUsage = `Usage: oncepay pay -from ACCOUNT -to ACCOUNT -amount minor -currency code [flags]

Makes a payment, and repeats it under the same key until its outcome is known. Without -key it makes a key and writes it to
standard error before the first attempt. Whatever then happens, here or there, the same command with that -key
finishes it: the payment is made once. -json shows the service's answer, a refusal too.

Exit codes: 0 paid, now or before; 1 not tried; 2 refused, the answer stands; 3 unknown, or paid and not shown: repeat it with
the same key. A refusal that is not stored under the key, such as a revoked credential, is 3 with -key: an earlier run may have paid.

Examples:
  oncepay pay -from 0198a6de-5c1f-7000-8000-0123456789ab -to 0198a6de-5c20-7000-8000-0123456789ab -amount 2500 -currency USD
  oncepay pay -key order-1001 -reference order-1001 -from 0198… -to 0198… -amount 2500 -currency USD -timeout 2m
`

// order is the body of a payment, as in api/openapi.yaml.
type order struct {
	AmountMinor        int64     `json:"amount_minor"`
	Currency           string    `json:"currency"`
	SourceAccount      uuid.UUID `json:"source_account"`
	DestinationAccount uuid.UUID `json:"destination_account"`
	Description        string    `json:"description,omitempty"`
	ClientReference    string    `json:"client_reference,omitempty"`
}

// errNotShown must not look like "not tried", or a script would pay again under a new key. The same
// key shows the answer.
var errNotShown = errors.New(
	"it was paid, but the answer could not be written: repeat it with the same key to see it")

func (c *call) pay(ctx context.Context, args []string) error {
	f := newFlags("pay", payUsage)
	from, to := f.String("from", "", "`account` that pays"),
		f.String("to", "", "`account` that is paid")
	var o order
	f.amount(&o.AmountMinor, "amount", "`amount` in minor units: 2500 is 25.00 USD")
	f.StringVar(&o.Currency, "currency", "", "ISO 4217 `code`")
	f.StringVar(&o.Description, "description", "", "`text` for people")
	f.StringVar(&o.ClientReference, "reference", "", "your own `reference`")
	key := f.String("key", "",
		"idempotency `key`, new for every payment and the same for every repeat of it; none: one is made")
	timeout := 30 * time.Second
	f.duration(&timeout, "timeout", "`duration` to repeat for, such as 2m (default 30s)")
	if _, err := f.parse(c, args); err != nil {
		return err
	}

	check := checks{flags: f}
	o.SourceAccount, o.DestinationAccount = check.id("-from", *from), check.id("-to", *to)
	check.that(o.AmountMinor >= 1 && o.AmountMinor <= payments.MaxAmount,
		fmt.Sprintf("-amount must be from 1 to %d, in minor units", int64(payments.MaxAmount)))
	check.that(payments.KnownCurrency(o.Currency),
		"-currency must be an ISO 4217 code in capitals, such as USD")
	check.that(utf8.ValidString(o.Description) && utf8.ValidString(o.ClientReference),
		"-description and -reference must be UTF-8")
	check.that(timeout > 0, "-timeout must be more than nothing, such as 30s")

	// Only a given key may have paid before.
	given := *key != ""
	if given {
		check.key("-key", *key)
	}
	if err := check.err(); err != nil {
		return err
	}

	api, err := c.api()
	if err != nil {
		return err
	}

	if *key == "" {
		*key = uuid.NewString()
		// Before the first attempt, so that an interrupted user can repeat the payment.
		if _, err := fmt.Fprintf(c.stderr,
			"oncepay: the key is %s: -key repeats this payment under it\n", *key); err != nil {
			return fmt.Errorf("write the key, nothing was sent: %w", err)
		}
	}

	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a, err := api.Post(ctx, "/api/v1/payments", *key, o)
	if err != nil {
		return err
	}

	if a.Status != http.StatusCreated {
		err := c.refused(f, a)
		if given && !a.Settled() {
			// An earlier run under this key may have paid, and this refusal does not speak for it.
			return fmt.Errorf("%w (this attempt: %w); the key is %s", client.ErrUnknown, err, *key)
		}
		return err
	}

	// It is paid. From here on no error may look like a refusal.
	var p payments.Payment
	if err := json.Unmarshal(a.Body, &p); err != nil {
		return fmt.Errorf("%w: read answer: %w; the key is %s", client.ErrUnknown, err, *key)
	}

	err = c.show(f, json.RawMessage(a.Body), func(w io.Writer) {
		printPayment(w, p)
		row(w, "key", *key)
		if a.Replayed() {
			row(w, "", "(the answer to an earlier attempt: it was paid once)")
		}
	})
	if err != nil {
		return fmt.Errorf("%w (%w); the key is %s", errNotShown, err, *key)
	}
	return nil
}

// key checks a key by the service's own rules and returns it bare: in double quotes it is the same
// key.
func (c *checks) key(what, s string) string {
	bare, err := idempotency.ParseKey(http.Header{idempotency.Header: {s}})
	if err != nil {
		c.problems = append(c.problems, fmt.Errorf("%s: %w%s", what, err, c.flags.hint()))
	}
	return bare
}

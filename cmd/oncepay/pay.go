package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

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

func (c caller) pay() *cobra.Command {
	pay := &cobra.Command{
		Use:   "pay",
		Short: "Make a payment, and repeat it until its outcome is known",
		Long: `Makes a payment, and repeats it under the same key until its outcome is known. Without --key it
makes a key and writes it to standard error before the first attempt. Whatever then happens, here
or there, the same command with that --key finishes it: the payment is made once. --json shows the
service's answer, a refusal too.

Exit codes: 0 paid, now or before; 1 not tried; 2 refused, the answer stands; 3 unknown, or paid and
not shown: repeat it with the same key. A refusal that is not stored under the key, such as a
revoked credential, is 3 with --key: an earlier run may have paid.`,
		Example: `  oncepay pay --from 0198a6de-5c1f-7000-8000-0123456789ab \
    --to 0198a6de-5c20-7000-8000-0123456789ab --amount 2500 --currency USD
  oncepay pay --key order-1001 --reference order-1001 --timeout 2m \
    --from 0198… --to 0198… --amount 2500 --currency USD`,
		GroupID: asClient,
	}

	var o order
	program.Flag(pay, &o.SourceAccount, "from", "ACCOUNT", "account that pays", parseID)
	program.Flag(pay, &o.DestinationAccount, "to", "ACCOUNT", "account that is paid", parseID)
	program.Flag(pay, &o.AmountMinor, "amount", "AMOUNT", "minor units: 2500 is 25.00 USD",
		parseAmount)
	program.Flag(pay, &o.Currency, "currency", "CODE", "ISO 4217 code", parseCurrency)
	program.Flag(pay, &o.Description, "description", "TEXT", "a text for people", parseText)
	program.Flag(pay, &o.ClientReference, "reference", "TEXT", "your own reference", parseText)
	program.Require(pay, "from", "to", "amount", "currency")

	var key string
	program.Flag(pay, &key, "key", "KEY", "idempotency key, the same for every repeat of the "+
		"payment and no other\n(without it a new one is made)", parseKey)
	timeout := pay.Flags().Duration("timeout", 30*time.Second, "how long to repeat, such as 2m")

	pay.RunE = func(cmd *cobra.Command, _ []string) error {
		if *timeout <= 0 {
			return errors.New("--timeout must be more than nothing, such as 30s")
		}

		api, err := c.api()
		if err != nil {
			return err
		}

		// Ctrl-C and the timeout end the repeats; neither tells what became of the last one.
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return send(ctx, cmd, api, o, key)
	}
	return pay
}

// send makes the payment under the key, or under a new one if it is empty, and shows the answer.
func send(
	ctx context.Context, cmd *cobra.Command, api *client.Client, o order, key string,
) error {
	// Only a given key may have paid before.
	given := key != ""
	if !given {
		key = uuid.NewString()
		// Before the first attempt, so that an interrupted user can repeat the payment.
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(),
			"oncepay: the key is %s: --key repeats this payment under it\n", key); err != nil {
			return fmt.Errorf("write the key, nothing was sent: %w", err)
		}
	}

	a, err := api.Post(ctx, "/api/v1/payments", key, o)
	if err != nil {
		return err
	}

	if a.Status != http.StatusCreated {
		err := shown(cmd, &refusal{a})
		if given && !a.Settled() {
			// An earlier run under this key may have paid, and this refusal does not speak for it.
			return fmt.Errorf("%w (this attempt: %w); the key is %s", client.ErrUnknown, err, key)
		}
		return err
	}

	// It is paid. From here on no error may look like a refusal.
	var p payments.Payment
	if err := json.Unmarshal(a.Body, &p); err != nil {
		return fmt.Errorf("%w: read answer: %w; the key is %s", client.ErrUnknown, err, key)
	}

	err = program.Show(cmd, json.RawMessage(a.Body), func(w io.Writer) {
		printPayment(w, p)
		program.Row(w, "key", key)
		if a.Replayed() {
			program.Row(w, "", "(the answer to an earlier attempt: it was paid once)")
		}
	})
	if err != nil {
		return fmt.Errorf("%w (%w); the key is %s", errNotShown, err, key)
	}
	return nil
}

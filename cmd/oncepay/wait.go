package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/program"
)

// aboutWait is part of the help of the commands that may go by card.
const aboutWait = `

With --wait, what goes by card is 2 if it was declined or has failed, and 3 if it is still
processing when the time is over: the same command with the same --key waits again.`

func waitFlag(c *cobra.Command, wait *time.Duration) {
	program.Flag(c, wait, "wait", "DURATION",
		"how long to wait until what goes by card has ended, such as 10s", parseTimeout)
}

// errNotByCard is a final answer as well: the service has recorded it.
var errNotByCard = errors.New("it did not go by card")

// await waits until the payment or refund that was made has ended, if it is with the payment service
// provider, and returns it as the service has it then.
func await(
	ctx context.Context, api *client.Client, made client.Answer, patience time.Duration,
) (client.Answer, error) {
	if endOf(made.Body).Status != payments.Processing {
		return made, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	a, err := api.Await(ctx, made.Header.Get("Location"))
	switch {
	case err != nil:
		return a, err
	case a.Status != 200: // it was made, so it is there
		return a, fmt.Errorf("%w (%w)", client.ErrProcessing, &refusal{a})
	}
	return a, nil
}

// awaitEnd reads what is at path when it has ended, or as it is when the time is over.
func awaitEnd(
	ctx context.Context, api *client.Client, path string, patience time.Duration,
) (client.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	a, err := api.Await(ctx, path)
	if errors.Is(err, client.ErrProcessing) && a.Status != 0 {
		return a, nil
	}
	return a, err
}

// end is how a payment or refund has ended.
type end struct {
	Status      payments.Status `json:"status"`
	DeclineCode payments.Code   `json:"decline_code"`
}

func endOf(body []byte) (e end) {
	_ = json.Unmarshal(body, &e)
	return e
}

// err returns an error if no money moved.
func (e end) err() error {
	if e.Status == payments.Declined || e.Status == payments.Failed {
		return fmt.Errorf("%w: %s", errNotByCard, withReason(e.Status, e.DeclineCode))
	}
	return nil
}

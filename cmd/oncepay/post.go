package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/program"
)

// aboutKeys is part of the help of every command that changes something through the API.
const aboutKeys = `The request is repeated under one key until its outcome is known.
Without --key a new one is made and written to standard error before the first attempt. Whatever
then happens, here or there, the same command with that --key finishes it: it is done once. --json
shows the service's answer, a refusal too.

Exit codes: 0 done, now or before; 1 not tried; 2 refused, the answer stands; 3 unknown, or done and
not shown: repeat it with the same key. A refusal that is not stored under the key, such as a
revoked credential, is 3 with --key: an earlier run may have done it.`

// keyed are the flags of a command that changes something through the API.
type keyed struct {
	key     string // empty: a new one is made
	timeout time.Duration
}

func (k *keyed) flags(c *cobra.Command) {
	program.Flag(c, &k.key, "key", "KEY", "idempotency key, the same for every repeat of the "+
		"request and no other\n(without it a new one is made)", parseKey)
	k.timeout = 30 * time.Second
	program.Flag(c, &k.timeout, "timeout", "DURATION",
		"how long to repeat, such as 2m (default 30s)", parseTimeout)
}

func parseTimeout(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("it must be a duration, such as 30s or 2m")
	}
	return d, nil
}

// errNotShown must not look like "not tried", or a script would send it again under a new key. The
// same key shows the answer.
var errNotShown = errors.New(
	"it was done, but the answer could not be written: repeat it with the same key to see it")

// change is a request of such a command.
type change struct {
	path      string
	ifVersion int64 // the version of the payment that it changes, or it is refused; zero: any
	body      any
	wait      time.Duration // how long to wait if it goes by card; zero: not at all
}

// post sends the change under the key until its outcome is known, and shows the answer, a T.
func post[T any](
	cmd *cobra.Command, c caller, k keyed, ch change, text func(io.Writer, T),
) error {
	api, err := c.api()
	if err != nil {
		return err
	}

	// Only a given key may have been sent before.
	given := k.key != ""
	if !given {
		k.key = uuid.NewString()
		// Before the first attempt, so that an interrupted user can repeat the request.
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(),
			"oncepay: the key is %s: --key repeats this request under it\n", k.key); err != nil {
			return fmt.Errorf("write the key, nothing was sent: %w", err)
		}
	}

	// Ctrl-C and the timeout end the repeats; neither tells what became of the last one.
	ctx, cancel := context.WithTimeout(cmd.Context(), k.timeout)
	defer cancel()
	a, err := api.PostIf(ctx, ch.path, k.key, ch.ifVersion, ch.body)
	if err != nil {
		return err
	}

	if a.Status >= 300 {
		err := shown(cmd, &refusal{a})
		if given && !a.Settled() {
			// An earlier run under this key may have done it, and this refusal does not speak for it.
			return fmt.Errorf("%w (this attempt: %w); the key is %s", client.ErrUnknown, err, k.key)
		}
		return err
	}

	replayed := a.Replayed()
	if ch.wait > 0 {
		if a, err = await(cmd.Context(), api, a, ch.wait); err != nil {
			return fmt.Errorf("%w; the key is %s", err, k.key)
		}
	}

	// It is done. From here on no error may look like a refusal, unless the card was refused.
	var v T
	if err := json.Unmarshal(a.Body, &v); err != nil {
		return fmt.Errorf("%w: read answer: %w; the key is %s", client.ErrUnknown, err, k.key)
	}

	err = program.Show(cmd, json.RawMessage(a.Body), func(w io.Writer) {
		text(w, v)
		program.Row(w, "key", k.key)
		if replayed {
			program.Row(w, "", "(the answer to an earlier attempt: it was done once)")
		}
	})
	if err != nil {
		return fmt.Errorf("%w (%w); the key is %s", errNotShown, err, k.key)
	}
	if ch.wait > 0 {
		return endOf(a.Body).err()
	}
	return nil
}

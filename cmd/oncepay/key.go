package main

import (
	"encoding/json"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
)

// keyStatus is the service's answer. A nil field is unknown.
type keyStatus struct {
	Key            string     `json:"key"`
	Status         string     `json:"status"`
	ResponseStatus *int       `json:"response_status"`
	Resource       *string    `json:"resource"`
	FirstSeen      *time.Time `json:"first_seen"`
	Expires        *time.Time `json:"expires"`
}

func (c caller) key() *cobra.Command {
	return &cobra.Command{
		Use:   "key KEY",
		Short: "Show the state of an idempotency key",
		Long: `Shows the state of an idempotency key, without disturbing a request under it:

  unknown      nothing is stored under it, or no longer: a payment sent with it now is a first one
  in_progress  a request under it is being worked on: ask again
  completed    it has an answer, which every repeat gets again

Keys belong to the client whose credential asks. --json shows the service's answer.

Exit codes: 0 answered, whatever the status; 1 the API could not be asked; 2 refused: a bad
credential.`,
		Example: "  oncepay key order-1001\n  oncepay key order-1001 --json",
		GroupID: asClient,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := argument("KEY", args[0], parseKey)
			if err != nil {
				return err
			}
			api, err := c.api()
			if err != nil {
				return err
			}

			var k keyStatus
			path := "/api/v1/idempotency-keys/" + url.PathEscape(key)
			a, answered, err := ask(cmd.Context(), api, path, &k)
			switch {
			case err != nil:
				return err
			case !answered:
				return refused(cmd, a)
			}
			return program.Show(cmd, json.RawMessage(a.Body), k.print)
		},
	}
}

func (k keyStatus) print(w io.Writer) {
	program.Row(w, "key", k.Key)
	program.Row(w, "status", k.Status)

	// "unknown" alone could be taken for an unknown outcome.
	switch k.Status {
	case "unknown":
		program.Row(w, "", "nothing is stored under it, or no longer: "+
			"a payment sent with it now is a first one")
	case "in_progress":
		program.Row(w, "", "a request under it is being worked on: ask again")
	}

	if k.ResponseStatus != nil {
		program.Row(w, "answer", *k.ResponseStatus)
	}
	if k.Resource != nil {
		program.Row(w, "resource", *k.Resource)
	}
	if k.Status == "completed" {
		program.Row(w, "first seen", k.FirstSeen)
		program.Row(w, "expires", k.Expires)
	}
}

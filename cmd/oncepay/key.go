package main

import (
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
	status := &cobra.Command{
		Use:   "key KEY",
		Short: "Show the state of an idempotency key",
		Long: `Shows the state of an idempotency key, without disturbing a request under it:

  unknown      nothing is stored under it, or no longer: a request sent with it now is a first one
  in_progress  a request under it is being worked on: ask again
  completed    it has an answer, which every repeat gets again

Keys belong to the client whose credential asks. --json shows the service's answer.

Exit codes: 0 answered, whatever the status; 1 the API could not be asked; 2 refused: a bad
credential.`,
		Example: "  oncepay key order-1001\n  oncepay key order-1001 --json",
		GroupID: asClient,
	}

	var key string
	program.Argument(status, &key, parseKey)

	status.RunE = func(cmd *cobra.Command, _ []string) error {
		var k keyStatus
		body, err := c.ask(cmd.Context(), "/api/v1/idempotency-keys/"+url.PathEscape(key), 0, &k)
		if err != nil {
			return shown(cmd, err)
		}

		return program.Show(cmd, body, k.print)
	}
	return status
}

func (k keyStatus) print(w io.Writer) {
	program.Row(w, "key", k.Key)
	program.Row(w, "status", k.Status)

	// "unknown" alone could be taken for an unknown outcome.
	switch k.Status {
	case "unknown":
		program.Row(w, "", "nothing is stored under it, or no longer: "+
			"a request sent with it now is a first one")
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

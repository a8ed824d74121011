package main

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"time"
)

const keyUsage = `Usage: oncepay key [flags] KEY

Tells what became of an idempotency key, without disturbing a request under it:

  unknown      nothing is stored under it, or no longer: a payment sent with it now is a first one
  in_progress  a request under it is being worked on: ask again
  completed    it has an answer, which every repeat gets again

Keys belong to the client whose credential asks. -json shows the service's answer.

Exit codes: 0 answered, whatever the status; 1 the API could not be asked; 2 refused: a bad credential.

Examples:
  oncepay key order-1001
  oncepay key order-1001 -json
`

// keyStatus is the service's answer. A nil field is unknown.
type keyStatus struct {
	Key            string     `json:"key"`
	Status         string     `json:"status"`
	ResponseStatus *int       `json:"response_status"`
	Resource       *string    `json:"resource"`
	FirstSeen      *time.Time `json:"first_seen"`
	Expires        *time.Time `json:"expires"`
}

func (c *call) key(ctx context.Context, args []string) error {
	f := newFlags("key", keyUsage)
	found, err := f.parse(c, args, "KEY")
	if err != nil {
		return err
	}

	check := checks{flags: f}
	key := check.key("KEY", found[0])
	if err := check.err(); err != nil {
		return err
	}

	api, err := c.api()
	if err != nil {
		return err
	}

	var k keyStatus
	a, answered, err := ask(ctx, api, "/api/v1/idempotency-keys/"+url.PathEscape(key), &k)
	switch {
	case err != nil:
		return err
	case !answered:
		return c.refused(f, a)
	}

	return c.show(f, json.RawMessage(a.Body), k.print)
}

func (k keyStatus) print(w io.Writer) {
	row(w, "key", k.Key)
	row(w, "status", k.Status)

	if k.ResponseStatus != nil {
		row(w, "answer", *k.ResponseStatus)
	}
	if k.Resource != nil {
		row(w, "resource", *k.Resource)
	}

	if k.Status == "completed" {
		row(w, "first seen", k.FirstSeen)
		row(w, "expires", k.Expires)
	}
}

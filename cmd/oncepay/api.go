package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/program"
)

// caller has the commands that call the API, as a client of the service.
type caller struct{ getenv func(string) string }

// api returns a client of the service with the credential of the environment.
func (c caller) api() (*client.Client, error) {
	cfg, err := config.LoadCaller(c.getenv)
	if err != nil {
		return nil, err
	}

	// A mistyped token is told from one that the service does not know.
	if _, whole := credentials.Parse(cfg.Token); !whole {
		return nil, errors.New("ONCEPAY_TOKEN is no credential: one begins with oncepay_ " +
			"and has a checksum, so a character is wrong or missing")
	}

	return &client.Client{URL: cfg.URL, Token: cfg.Token}, nil
}

// refusal is a final answer of the service that says no.
type refusal struct{ client.Answer }

func (r *refusal) Error() string {
	p := r.Problem()
	text := fmt.Sprintf("%d %s: %s %s", r.Status, p.Code, p.Detail, next(p.Retry))
	return strings.Join(strings.Fields(text), " ")
}

// next tells a client what it can do after a problem.
func next(retry string) string {
	switch retry {
	case "same-key":
		return "Repeat it with the same key."
	case "new-key":
		return "This key is spent: try again later or changed, under a new key."
	}
	return "Repeating it is of no use."
}

// shown returns err, and shows the answer that a refusal holds if JSON was asked for.
func shown(cmd *cobra.Command, err error) error {
	var r *refusal
	if !errors.As(err, &r) || !json.Valid(r.Body) {
		return err
	}

	asText := func(io.Writer) {} // the error says it
	if failed := program.Show(cmd, json.RawMessage(r.Body), asText); failed != nil {
		// The refusal is final even if it cannot be shown.
		return fmt.Errorf("%w (and it could not be written as JSON: %w)", err, failed)
	}
	return err
}

// ask reads what the service has at path into v, and returns it as it came. If it is by card, it waits
// for its end. A refusal is an error.
func (c caller) ask(
	ctx context.Context, path string, wait time.Duration, v any,
) (json.RawMessage, error) {
	get := (*client.Client).Get
	if wait > 0 {
		get = func(api *client.Client, ctx context.Context, path string) (client.Answer, error) {
			return awaitEnd(ctx, api, path, wait)
		}
	}
	return c.send(ctx, get, path, v)
}

// send is ask with another method, one that may be repeated like GET.
func (c caller) send(
	ctx context.Context, method func(*client.Client, context.Context, string) (client.Answer, error),
	path string, v any,
) (json.RawMessage, error) {
	api, err := c.api()
	if err != nil {
		return nil, err
	}

	a, err := method(api, ctx, path)
	if err != nil {
		return nil, fmt.Errorf("ask the API: %w", err)
	}

	p := a.Problem()
	// A refusal counts only if it is final and the service's own.
	switch {
	case a.Status == http.StatusOK && json.Unmarshal(a.Body, v) == nil:
		return a.Body, nil
	case a.Status < 500 && (p.Retry == "never" || p.Retry == "new-key"):
		return nil, &refusal{a}
	case p.Code != "":
		return nil, fmt.Errorf("ask the API: %d %s: %s Ask again", a.Status, p.Code, p.Detail)
	}
	return nil, fmt.Errorf(
		"ask the API: an answer of status %d that is not the service's: is ONCEPAY_URL right?",
		a.Status)
}

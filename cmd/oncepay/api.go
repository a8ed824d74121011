package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/credentials"
)

// api is the service as the client sees it whose credential is in the environment.
func (c *call) api() (*client.Client, error) {
	cfg, err := config.LoadCaller(c.getenv)
	if err != nil {
		return nil, err
	}
	if _, whole := credentials.Parse(cfg.Token); !whole {
		return nil, errors.New("ONCEPAY_TOKEN is no credential: one begins with oncepay_ and has a checksum, so a character is wrong or missing")
	}
	return &client.Client{URL: cfg.URL, Token: cfg.Token}, nil
}

// refusal is an answer of the service that stands and says no.
type refusal struct{ client.Answer }

func (r *refusal) Error() string {
	p := r.Problem()
	return strings.Join(strings.Fields(fmt.Sprintf("%d %s: %s %s", r.Status, p.Code, p.Detail, next(p.Retry))), " ")
}

// next says what a client can do after a problem.
func next(retry string) string {
	switch retry {
	case "same-key":
		return "Repeat it with the same key."
	case "new-key":
		return "This key is spent: try again later or changed, under a new key."
	}
	return "Repeating it is of no use."
}

// refused makes an error of a refusal, and shows the whole of it where JSON was asked for.
func (c *call) refused(f *flags, a client.Answer) error {
	if f.asJSON && json.Valid(a.Body) {
		if err := c.show(f, json.RawMessage(a.Body), nil); err != nil {
			return fmt.Errorf("%w (and it could not be written as JSON: %w)", &refusal{a}, err) // it stands all the same
		}
	}
	return &refusal{a}
}

// ask reads path into v. found: the service says that it is there.
func ask(ctx context.Context, api *client.Client, path string, v any) (a client.Answer, found bool, err error) {
	a, err = api.Get(ctx, path)
	if err != nil {
		return a, false, fmt.Errorf("ask the API: %w", err)
	}
	p := a.Problem()
	switch {
	case a.Status == http.StatusOK && json.Unmarshal(a.Body, v) == nil:
		return a, true, nil
	case a.Status < 500 && (p.Retry == "never" || p.Retry == "new-key"):
		return a, false, nil
	case p.Code != "":
		return a, false, fmt.Errorf("ask the API: %d %s: %s Ask again", a.Status, p.Code, p.Detail)
	}
	return a, false, fmt.Errorf("ask the API: an answer of status %d that is not the service's: is ONCEPAY_URL right?", a.Status)
}

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/webhooks"
)

const endpointsPath = "/api/v1/webhook-endpoints"

// anEndpoint is the id in the examples.
const anEndpoint = "0198a6de-5c1f-7000-8000-0123456789ab"

func (c caller) webhooks() *cobra.Command {
	g := group("webhooks", "Have events sent to a URL, and see what became of them",
		c.createWebhook(), c.listWebhooks(), c.getWebhook(), c.deleteWebhook(),
		c.rotateWebhook(), c.enableWebhook(), c.deliveries(), c.redeliver())
	g.GroupID = asClient
	return g
}

// endpointOrder is the body of a new endpoint, as in api/openapi.yaml.
type endpointOrder struct {
	URL        string   `json:"url"`
	EventTypes []string `json:"event_types,omitempty"`
}

func (c caller) createWebhook() *cobra.Command {
	create := &cobra.Command{
		Use:   "create",
		Short: "Have events sent to a URL from now on",
		Long: `Makes a webhook endpoint: events that happen from now on are posted to its URL. The secret is shown
now, and again by the same command with the same --key; keep it where the receiver runs. ` + aboutKeys,
		Example: `  oncepay webhooks create --url https://example.com/hooks
  oncepay webhooks create --url https://example.com/hooks --types payment.completed,refund.completed`,
	}

	var o endpointOrder
	program.Flag(create, &o.URL, "url", "URL", "where to, https", parseText)
	program.Require(create, "url")
	program.Flag(create, &o.EventTypes, "types", "TYPES",
		"event types, separated by commas (without it all)", parseEventTypes)

	var k keyed
	k.flags(create)

	create.RunE = func(cmd *cobra.Command, _ []string) error {
		return post(cmd, c, k, change{path: endpointsPath, body: o}, printSecret)
	}
	return create
}

func parseEventTypes(s string) ([]string, error) {
	types := strings.Split(s, ",")
	for _, t := range types {
		if !slices.Contains(webhooks.EventTypes, t) {
			return nil, errors.New("it may have " + strings.Join(webhooks.EventTypes, ", "))
		}
	}
	return types, nil
}

func (c caller) listWebhooks() *cobra.Command {
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the webhook endpoints, newest first",
		Example: "  oncepay webhooks list",
	}
	list.RunE = func(cmd *cobra.Command, _ []string) error {
		return shown(cmd, show(cmd, c, endpointsPath, 0, printEndpoints))
	}
	return list
}

func (c caller) getWebhook() *cobra.Command {
	get := &cobra.Command{
		Use:     "get ENDPOINT",
		Short:   "Show a webhook endpoint",
		Example: "  oncepay webhooks get " + anEndpoint,
	}
	var id uuid.UUID
	program.Argument(get, &id, parseID)

	get.RunE = func(cmd *cobra.Command, _ []string) error {
		return shown(cmd, show(cmd, c, endpointPath(id), 0, printEndpoint))
	}
	return get
}

func (c caller) deleteWebhook() *cobra.Command {
	remove := &cobra.Command{
		Use:     "delete ENDPOINT",
		Short:   "Delete a webhook endpoint: nothing is sent to it any more",
		Example: "  oncepay webhooks delete " + anEndpoint,
	}
	var id uuid.UUID
	program.Argument(remove, &id, parseID)

	remove.RunE = func(cmd *cobra.Command, _ []string) error {
		var e webhooks.Endpoint
		body, err := c.send(cmd.Context(), (*client.Client).Delete, endpointPath(id), &e)
		if err != nil {
			return shown(cmd, err)
		}
		return program.Show(cmd, body, func(w io.Writer) { printEndpoint(w, e) })
	}
	return remove
}

func (c caller) rotateWebhook() *cobra.Command {
	return changeEndpoint(c, "rotate ENDPOINT", "rotate-secret",
		"Replace the secret; for a day the old one is valid as well", printSecret)
}

func (c caller) enableWebhook() *cobra.Command {
	return changeEndpoint(c, "enable ENDPOINT", "enable",
		"Enable a disabled webhook endpoint: what is pending is sent first", printEndpoint)
}

// changeEndpoint returns a command that posts to what is below an endpoint.
func changeEndpoint[T any](
	c caller, use, below, short string, text func(io.Writer, T),
) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{
		Use: use, Short: short, Long: short + ".\n\n" + aboutKeys,
		Example: "  oncepay webhooks " + name + " " + anEndpoint,
	}
	var id uuid.UUID
	program.Argument(cmd, &id, parseID)
	var k keyed
	k.flags(cmd)

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return post(cmd, c, k, change{path: endpointPath(id) + "/" + below, body: struct{}{}}, text)
	}
	return cmd
}

func endpointPath(id uuid.UUID) string { return endpointsPath + "/" + id.String() }

func printEndpoint(w io.Writer, e webhooks.Endpoint) {
	program.Row(w, "endpoint", e.ID)
	program.Row(w, "url", e.URL)
	program.Row(w, "events", typesOf(e))
	program.Row(w, "state", strings.TrimSuffix(string(e.State)+": "+e.DisabledReason, ": "))
	if e.DisabledAt != nil {
		program.Row(w, "disabled", *e.DisabledAt)
	}
	if e.FailingSince != nil {
		program.Row(w, "failing since", *e.FailingSince)
	}
	program.Row(w, "created", e.CreatedAt)
}

func printSecret(w io.Writer, s webhooks.Secret) {
	printEndpoint(w, s.Endpoint)
	program.Row(w, "secret", s.Secret)
	if s.PreviousUntil != nil {
		program.Row(w, "old one until", *s.PreviousUntil)
	}
}

func typesOf(e webhooks.Endpoint) string {
	if len(e.EventTypes) == 0 {
		return "all"
	}
	return strings.Join(e.EventTypes, ", ")
}

// page is the answer of a list.
type page[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"`
}

func printEndpoints(w io.Writer, p page[webhooks.Endpoint]) {
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "there are no webhook endpoints")
		return
	}
	program.Row(w, "ENDPOINT", "STATE", "URL", "EVENTS")
	for _, e := range p.Items {
		program.Row(w, e.ID, e.State, e.URL, typesOf(e))
	}
}

package main

import (
	"fmt"
	"io"
	"net/url"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/webhooks"
)

func (c caller) deliveries() *cobra.Command {
	list := &cobra.Command{
		Use:   "deliveries ENDPOINT",
		Short: "List what was and will be sent to a webhook endpoint, newest event first",
		Long: `Lists what was and will be sent to a webhook endpoint, newest event first, 100 at most. --after
continues behind the last one of a list.`,
		Example: "  oncepay webhooks deliveries " + anEndpoint,
	}
	var id uuid.UUID
	program.Argument(list, &id, parseID)
	var after string
	program.Flag(list, &after, "after", "CURSOR", "where the list before ended", parseText)

	list.RunE = func(cmd *cobra.Command, _ []string) error {
		path := endpointPath(id) + "/deliveries?limit=100"
		if after != "" {
			path += "&cursor=" + url.QueryEscape(after)
		}
		return shown(cmd, show(cmd, c, path, 0, printDeliveries))
	}
	return list
}

func printDeliveries(w io.Writer, p page[webhooks.Delivery]) {
	if len(p.Items) == 0 {
		fmt.Fprintln(w, "there are no deliveries")
		return
	}
	program.Row(w, "EVENT", "TYPE", "STATE", "TRIES", "SUBJECT", "LAST ERROR")
	for _, d := range p.Items {
		program.Row(w, d.ID, d.EventType, d.State, d.Tries, d.Subject, d.LastError)
	}
	if p.NextCursor != nil {
		fmt.Fprintln(w, "there are more: --after", *p.NextCursor)
	}
}

func (c caller) redeliver() *cobra.Command {
	const short = "Send an event to a webhook endpoint again, or now"
	redeliver := &cobra.Command{
		Use: "redeliver ENDPOINT", Short: short, Long: short + ".\n\n" + aboutKeys,
		Example: "  oncepay webhooks redeliver " + anEndpoint + " --event 0198a6df-77e0-7000-8000-0123456789ab",
	}
	var endpoint, event uuid.UUID
	program.Argument(redeliver, &endpoint, parseID)
	program.Flag(redeliver, &event, "event", "EVENT", "the event, as deliveries shows it", parseID)
	program.Require(redeliver, "event")
	var k keyed
	k.flags(redeliver)

	redeliver.RunE = func(cmd *cobra.Command, _ []string) error {
		path := endpointPath(endpoint) + "/deliveries/" + event.String() + "/redeliver"
		return post(cmd, c, k, change{path: path, body: struct{}{}}, printDelivery)
	}
	return redeliver
}

func printDelivery(w io.Writer, d webhooks.Delivery) {
	program.Row(w, "event", d.ID)
	program.Row(w, "type", d.EventType)
	program.Row(w, "subject", d.Subject)
	program.Row(w, "state", d.State)
	program.Row(w, "tries", d.Tries)
	if d.LastError != "" {
		program.Row(w, "last error", d.LastError)
	}
	if d.NextTryAt != nil {
		program.Row(w, "next try", *d.NextTryAt)
	}
}

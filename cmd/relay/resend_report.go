package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncepay/oncepay/internal/config"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
)

// resendReport is what relay resend has counted or sent.
type resendReport struct {
	resend resend
	span   relay.Span
	cfg    config.Relay
	tally  relay.Tally
	took   time.Duration
}

// resent is the JSON form of a resendReport.
type resent struct {
	Sent    bool  `json:"sent"`
	FromID  int64 `json:"from_id"`
	UntilID int64 `json:"until_id"`
	Events  int64 `json:"events"`
	Bytes   int64 `json:"bytes"`
	relay.Tally
	Rate      int        `json:"rate"`
	Seconds   float64    `json:"seconds"`    // what it took, or will take
	KeptUntil *time.Time `json:"kept_until"` // nil: there is no event
}

func (r resendReport) json() resent {
	j := resent{
		Sent: r.resend.send, FromID: r.span.FromID, UntilID: r.span.UntilID,
		Events: r.tally.Events(), Bytes: r.tally.Bytes(), Tally: r.tally,
		Rate: r.resend.rate, Seconds: r.duration().Seconds(),
	}
	if j.Events > 0 {
		j.KeptUntil = new(r.keptUntil())
	}
	if j.Topics == nil {
		j.Topics = []relay.TopicTally{}
	}
	return j
}

func (r resendReport) duration() time.Duration {
	if r.resend.send {
		return r.took
	}
	return time.Duration(float64(r.tally.Events()) / float64(r.resend.rate) * float64(time.Second))
}

// earliest returns when the oldest of the events happened; zero: there are none.
func (r resendReport) earliest() (first time.Time) {
	for _, t := range r.tally.Topics {
		if first.IsZero() || t.Earliest.Before(first) {
			first = t.Earliest
		}
	}
	return first
}

// keptUntil returns when the outbox drops the first day of the events, at the earliest.
func (r resendReport) keptUntil() time.Time {
	const day = 24 * time.Hour
	return r.earliest().UTC().Truncate(day).Add(day + r.cfg.OutboxRetention)
}

func (r resendReport) print(w io.Writer) {
	if len(r.tally.Topics) > 0 {
		program.Row(w, "TOPIC", "EVENTS", "BYTES", "FIRST ID", "LAST ID", "EARLIEST", "LATEST")
	}
	for _, t := range r.tally.Topics {
		program.Row(w, r.cfg.TopicPrefix+t.Topic, t.Events, t.Bytes, t.FirstID, t.LastID,
			t.Earliest, t.Latest)
	}

	// No tab from here on: these are sentences.
	events, took := r.tally.Events(), r.duration().Round(time.Second)
	left := []struct {
		n    int64
		what string
	}{
		{r.tally.Unsent, "left to the running relay, which has not sent them yet"},
		{r.tally.Parked, "left out, behind a dead letter that waits for a decision"},
		{r.tally.Skipped, "left out, given up by an operator"},
	}
	for _, l := range left {
		if l.n > 0 {
			fmt.Fprintf(w, "%s: %d\n", l.what, l.n)
		}
	}

	switch {
	case r.resend.send:
		fmt.Fprintf(w, "sent %d events in %s\n", events, took)
	case events == 0:
		fmt.Fprintln(w, "there is nothing to send again in this range")
	default:
		fmt.Fprintf(w, "%d events, %d bytes: %s at %d a second\n", events, r.tally.Bytes(), took, r.resend.rate)
		r.warn(w)
		fmt.Fprintln(w, "nothing was sent: --send sends them")
	}
}

// warn says what else must still be there while they are sent.
func (r resendReport) warn(w io.Writer) {
	fmt.Fprintf(w, "each consumer's inbox must remember %s: `SELECT day FROM inbox_horizon` may not be later\n",
		r.earliest().UTC().Format(time.DateOnly))
	if until := r.keptUntil(); time.Now().Add(r.duration()).After(until) {
		fmt.Fprintf(w, "the outbox drops the first of them from %s on: raise OUTBOX_RETENTION of the relays first\n",
			until.Format(time.RFC3339))
	}
}

func parseEventID(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id < 1 {
		return 0, errors.New("it must be the id of an event in outbox_events")
	}
	return id, nil
}

// parseTime reads a day, or an RFC 3339 time.
func parseTime(s string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New(
		"it must be a day such as 2026-03-01, or a time such as 2026-03-01T12:00:00Z")
}

func parseTopic(s string) (string, error) {
	if !slices.Contains(topics, s) {
		return "", errors.New("it must be one of " + strings.Join(topics, ", ") + ", without the prefix")
	}
	return s, nil
}

// parseRate allows what one relay sends at most; more would only be a mistake.
func parseRate(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 1_000_000 {
		return 0, errors.New("it must be a number of events a second from 1 to 1000000")
	}
	return n, nil
}

package main

import (
	"errors"
	"fmt"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/traffic"
)

// verdict is the last line of -check.
type verdict struct {
	OK                 bool    `json:"ok"`
	Payments           int64   `json:"payments"`
	Replays            int64   `json:"replays"`
	MismatchesRefused  int64   `json:"mismatches_refused"`
	Declined           int64   `json:"declined"`
	Authorized         int64   `json:"authorized"`
	Captured           int64   `json:"captured"`
	Canceled           int64   `json:"canceled"`
	Expired            int64   `json:"expired"`
	Refunds            int64   `json:"refunds"`
	CardPayments       int64   `json:"card_payments"`
	PSPRepliesLost     int64   `json:"psp_replies_lost"`
	Webhooks           int64   `json:"webhooks"`
	Events             int64   `json:"events"`
	Lost               int64   `json:"lost"`               // acknowledged payments, events, effects
	DuplicatedEffects  int64   `json:"duplicated_effects"` // keys paid twice, statements ≠ ledger
	OutOfOrder         int64   `json:"out_of_order"`       // events, or what may not follow
	Unbalanced         int64   `json:"unbalanced"`         // payments, refunds and accounts
	HoldsWrong         int64   `json:"holds_wrong"`        // accounts
	ChargedTwice       int64   `json:"charged_twice"`      // operations
	PSPUnmatched       int64   `json:"psp_unmatched"`      // the PSP's books and ours, to the minor unit
	WebhooksLost       int64   `json:"webhooks_lost"`
	WebhooksOutOfOrder int64   `json:"webhooks_out_of_order"` // of one payment
	SentAgain          int64   `json:"sent_again"`            // events, by the successors of killed relays
	Kills              int     `json:"kills"`
	Seconds            float64 `json:"seconds"`

	Wrong map[string]int64 `json:"wrong,omitempty"` // each line that is not clean, by name
}

func (d *demo) killed(which func(kill) bool) (n int) {
	for _, k := range d.kills {
		if which(k) {
			n++
		}
	}
	return n
}

func (d *demo) judge(r invariant.Report) verdict {
	wrong := func(names ...string) (n int64) {
		for _, name := range names {
			n += r.Line(name).Wrong
		}
		return n
	}

	return verdict{
		Payments: r.Payments, Replays: r.Replays, MismatchesRefused: r.MismatchesRefused,
		Declined: r.Declined, Authorized: r.Authorized, Captured: r.Captured, Canceled: r.Canceled,
		Expired: r.Expired, Refunds: r.Refunds, Events: r.Events,
		SentAgain: r.Repeated, CardPayments: r.ByCard, PSPRepliesLost: d.lost,
		Webhooks: d.got.expected - d.got.lost, WebhooksLost: d.got.lost,
		WebhooksOutOfOrder: d.got.outOfOrder,
		Lost: wrong(
			invariant.AcknowledgedMissing, invariant.EventsMissing,
			invariant.EventsLost, invariant.EffectsLost),
		DuplicatedEffects: wrong(invariant.KeysTwice, invariant.StatementsWrong),
		OutOfOrder:        wrong(invariant.EventsOutOfOrder, invariant.TransitionsIllegal),
		Unbalanced: wrong(
			invariant.PaymentsUnbalanced, invariant.RefundsUnbalanced, invariant.BalancesWrong),
		HoldsWrong:   wrong(invariant.HoldsWrong),
		ChargedTwice: wrong(invariant.ChargedTwice),
		PSPUnmatched: wrong(invariant.ChargedUnbooked, invariant.BookedUncharged,
			invariant.PSPDiffers, invariant.OperationsWrong),
		Wrong: r.Wrong(),
	}
}

// objections returns why the run does not count as good: something is wrong, or the run would not
// have shown it.
func (d *demo) objections(r invariant.Report, h *traffic.History) error {
	var errs []error
	object := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	object(!r.OK(), "the count is not clean: see the lines marked WRONG")
	object(d.got.lost > 0, "%d webhooks did not reach the receiver", d.got.lost)
	object(d.got.outOfOrder > 0, "%d webhooks came out of order", d.got.outOfOrder)
	object(h.Unknown.Load() > 0, "%d requests never had an answer", h.Unknown.Load())

	// The rest is asked only of -check, which must also show something.
	if !d.check {
		return errors.Join(errs...)
	}

	for _, v := range victims {
		n := d.killed(func(k kill) bool { return k.victim == v })
		object(n != 1, "%s was killed %d times, not once", v, n)
	}

	// In Compose a relay may die between two batches.
	object(r.Repeated == 0 && !d.compose, "nothing was sent again for a killed relay: nothing was shown")

	object(d.hooks != nil && d.got.expected == 0, "there was no webhook: nothing was shown of it")

	for _, k := range d.kills {
		object(k.inFlight < leastInFlight,
			"only %d requests were in flight when %s was killed: %d make it a test",
			k.inFlight, k.victim, leastInFlight)
	}

	for _, line := range r.Lines {
		object(line.Of == 0, "%q looked at nothing", line.Name)
	}

	// Every case that the count is meant to catch must have occurred at least once.
	for _, saw := range []struct {
		what string
		n    int64
	}{
		{"payment", r.Payments},
		{"event", r.Events},
		{"replay", r.Replays},
		{"refusal of a reused key", r.MismatchesRefused},
		{"declined payment", r.Declined},
		{"authorized payment", r.Authorized},
		{"captured payment", r.Captured},
		{"canceled payment", r.Canceled},
		{"expired payment", r.Expired},
		{"refund", r.Refunds},
		{"payment by card", r.ByCard},
		{"lost reply of the PSP", d.lost},
		{"request that was cut off after its COMMIT and found by its repeat", r.Recovered},
	} {
		object(saw.n == 0, "there was no %s: nothing was shown of it", saw.what)
	}

	return errors.Join(errs...)
}

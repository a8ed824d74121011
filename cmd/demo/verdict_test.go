package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/traffic"
)

// goodRun is one to which there is nothing to object.
func goodRun() (*demo, invariant.Report, *traffic.History) {
	d := &demo{options: options{check: true}, lost: 5, hooks: &receiver{}, got: webhookCount{expected: 117}, kills: []kill{
		{victim{program: "api"}, 96}, {victim{"relay", dropped}, 96}, {victim{program: "consumer"}, leastInFlight}, {victim{program: "worker"}, 96}, {victim{program: "fakepsp"}, 96}, {victim{"relay", landed}, 96},
	}}
	r := invariant.Report{Payments: 100, Declined: 3, Authorized: 30, Captured: 15, Canceled: 8, Expired: 7, Refunds: 9, ByCard: 11, Events: 117, Records: 120, Repeated: 3, Exchanges: 150, Replays: 20, MismatchesRefused: 5, Recovered: 4}
	for _, name := range []string{invariant.AcknowledgedMissing, invariant.KeysTwice, invariant.EventsLost, invariant.EventsOutOfOrder, invariant.PaymentsUnbalanced} {
		r.Lines = append(r.Lines, invariant.Line{Name: name, Of: 100})
	}
	return d, r, &traffic.History{}
}

func TestGoodRunHasNoObjections(t *testing.T) {
	t.Parallel()
	d, r, h := goodRun()
	if err := d.objections(r, h); err != nil {
		t.Error(err)
	}
	want := verdict{Payments: 100, Replays: 20, MismatchesRefused: 5, Declined: 3, Authorized: 30, Captured: 15, Canceled: 8, Expired: 7, Refunds: 9, CardPayments: 11, PSPRepliesLost: 5, Webhooks: 117, Events: 117, SentAgain: 3}
	if diff := cmp.Diff(want, d.judge(r), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestObjections: each change alone must be objected to.
func TestObjections(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*demo, *invariant.Report, *traffic.History){
		"not clean":         func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Lines[2].Wrong = 1 },
		"looked at nothing": func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Lines[1].Of = 0 },
		"only 49 requests":  func(d *demo, _ *invariant.Report, _ *traffic.History) { d.kills[2].inFlight = 49 },
		"relay with its batch landed was killed 0":  func(d *demo, _ *invariant.Report, _ *traffic.History) { d.kills[5].batch = dropped },
		"relay with its batch dropped was killed 0": func(d *demo, _ *invariant.Report, _ *traffic.History) { d.kills[1].program = "api" },
		"api was killed 2 times": func(d *demo, _ *invariant.Report, _ *traffic.History) {
			d.kills = append(d.kills, kill{victim{program: "api"}, 96})
		},
		"nothing was sent again":  func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Repeated = 0 },
		"never had an answer":     func(_ *demo, _ *invariant.Report, h *traffic.History) { h.Unknown.Add(1) },
		"no payment":              func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Payments = 0 },
		"no event":                func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Events = 0 },
		"no replay":               func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Replays = 0 },
		"no refusal of a reused":  func(_ *demo, r *invariant.Report, _ *traffic.History) { r.MismatchesRefused = 0 },
		"no declined payment":     func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Declined = 0 },
		"no authorized payment":   func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Authorized = 0 },
		"no captured payment":     func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Captured = 0 },
		"no canceled payment":     func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Canceled = 0 },
		"no expired payment":      func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Expired = 0 },
		"no payment by card":      func(_ *demo, r *invariant.Report, _ *traffic.History) { r.ByCard = 0 },
		"did not reach the rec":   func(d *demo, _ *invariant.Report, _ *traffic.History) { d.got.lost = 1 },
		"came out of order":       func(d *demo, _ *invariant.Report, _ *traffic.History) { d.got.outOfOrder = 1 },
		"there was no webhook":    func(d *demo, _ *invariant.Report, _ *traffic.History) { d.got.expected = 0 },
		"no lost reply":           func(d *demo, _ *invariant.Report, _ *traffic.History) { d.lost = 0 },
		"no refund":               func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Refunds = 0 },
		"no request that was cut": func(_ *demo, r *invariant.Report, _ *traffic.History) { r.Recovered = 0 },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			d, r, h := goodRun()
			spoil(d, &r, h)
			if err := d.objections(r, h); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestJudgeCountsEachDefect(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]verdict{
		invariant.AcknowledgedMissing: {Lost: 7},
		invariant.EventsMissing:       {Lost: 7},
		invariant.EventsLost:          {Lost: 7},
		invariant.EffectsLost:         {Lost: 7},
		invariant.KeysTwice:           {DuplicatedEffects: 7},
		invariant.StatementsWrong:     {DuplicatedEffects: 7},
		invariant.EventsOutOfOrder:    {OutOfOrder: 7},
		invariant.TransitionsIllegal:  {OutOfOrder: 7},
		invariant.PaymentsUnbalanced:  {Unbalanced: 7},
		invariant.RefundsUnbalanced:   {Unbalanced: 7},
		invariant.HoldsWrong:          {HoldsWrong: 7},
		invariant.BalancesWrong:       {Unbalanced: 7},
		invariant.ChargedTwice:        {ChargedTwice: 7},
		invariant.ChargedUnbooked:     {PSPUnmatched: 7},
		invariant.BookedUncharged:     {PSPUnmatched: 7},
		invariant.PSPDiffers:          {PSPUnmatched: 7},
		invariant.OperationsWrong:     {PSPUnmatched: 7},
	} {
		got := (&demo{}).judge(invariant.Report{Lines: []invariant.Line{{Name: name, Wrong: 7, Of: 10}}})
		want.Wrong = map[string]int64{name: 7}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

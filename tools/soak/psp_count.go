package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// settleAndCount waits until every payment has ended, and returns what is wrong.
func (s *storming) settleAndCount(ctx context.Context) error {
	calm := time.Now()
	s.Say("%d payments and %d refunds were asked for, %d refunds refused; the faults have ended",
		s.load.acknowledged.Load(), s.load.refunds.Load(), s.load.refused.Load())

	// What takes longer is late, but the count says whether it is wrong as well.
	var o openOperations
	var late error
	err := rig.Until(ctx, 10*settleMax, "all operations ended", func(ctx context.Context) bool {
		var err error
		o, err = s.open(ctx)
		return err == nil && o.pending+o.unknown == 0
	})
	took := time.Since(calm)
	if err != nil || took > settleMax {
		late = fmt.Errorf("late: after %s %d operations are pending and %d unknown",
			took.Round(time.Millisecond), o.pending, o.unknown)
	}
	s.Say("all settled %.1f s after the faults; most tries of one operation: %d", took.Seconds(), o.tries)

	totals, err := s.drain(ctx)
	if err != nil {
		return errors.Join(late, err)
	}
	report, err := s.check(ctx)
	if err != nil {
		return errors.Join(late, err)
	}

	s.Say("the PSP charged %d and declined %d, gave back %d; it knows %d operations twice",
		totals.ChargesSucceeded, totals.ChargesDeclined, totals.RefundsSucceeded, totals.OperationsTwice)
	s.Say("it injected %s", injected(totals.Injected))
	s.Say("kills: %d workers, %d fakepsps; %d connections of Postgres cut", s.kills["workers"],
		s.kills["fakepsps"], s.cuts)
	fmt.Fprintln(s)
	if err := report.WriteTable(s); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}

	err = errors.Join(late, s.objections(report, totals))
	if err == nil {
		fmt.Fprintf(s, "\nok: of %d payments by card none was charged twice, without being completed,\n"+
			"or completed without being charged; all had ended %.1f s after the faults\n", report.ByCard, took.Seconds())
	}
	return err
}

func injected(faults map[string]int64) string {
	var all []string
	for _, name := range []string{
		"replies_lost", "errors_before", "errors_after", "slow_calls", "webhooks_doubled", "webhooks_shuffled",
	} {
		all = append(all, fmt.Sprintf("%d %s", faults[name], strings.ReplaceAll(name, "_", " ")))
	}
	return strings.Join(all, ", ")
}

// drain waits for the events, and for the PSP's webhooks.
func (s *storming) drain(ctx context.Context) (totals fakepsp.Totals, err error) {
	view, err := traffic.OpenView(ctx, s.url("postgres"), s.kafka.Brokers(), statements.Consumer)
	if err != nil {
		return totals, err
	}
	defer view.Close()
	if err := view.Drain(ctx, func(c traffic.Counts) { s.Say("backlog %d, lag %d", c.Backlog, c.Lag()) }); err != nil {
		return totals, err
	}

	err = rig.Until(ctx, settleMax, "the PSP's webhooks are delivered", func(ctx context.Context) bool {
		totals, err = s.totals(ctx)
		return err == nil && totals.WebhooksPending == 0
	})
	return totals, err
}

func (s *storming) totals(ctx context.Context) (t fakepsp.Totals, err error) {
	err = fakepsp.Ask(ctx, http.MethodGet, "http://"+s.psp, "/admin/totals", nil, &t)
	return t, err
}

func (s *storming) check(ctx context.Context) (invariant.Report, error) {
	books, err := traffic.ReadBooks(ctx, psp.NewClient("http://"+s.psp, pspKey, 1))
	if err != nil {
		return invariant.Report{}, err
	}

	const batch = 2500 // RELAY_BATCH's default; the relay may send it again after the broker was away
	return invariant.Check(ctx, invariant.Sources{
		DB: s.db, Brokers: s.kafka.Brokers(), TopicPrefix: "oncepay.", Consumer: statements.Consumer,
		PSP: books, MostRepeated: 2 * batch,
	})
}

// objections returns why the run does not count as good: something is wrong, or the run would not
// have shown it.
func (s *storming) objections(r invariant.Report, totals fakepsp.Totals) error {
	var errs []error
	object := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	object(!r.OK(), "the count is not clean: see the lines marked WRONG")
	object(totals.OperationsTwice > 0, "the PSP executed %d operations twice", totals.OperationsTwice)
	object(r.ByCard != s.load.acknowledged.Load(), "%d payments were acknowledged, and there are %d",
		s.load.acknowledged.Load(), r.ByCard)

	// A run without its faults, or that looked at nothing, proves nothing.
	object(s.kills["workers"] < 2 || s.kills["fakepsps"] < 1, "void: the kills were %v", s.kills)
	object(s.cuts == 0, "void: no connection was cut")
	for _, name := range []string{"replies_lost", "errors_before", "errors_after", "slow_calls", "webhooks_doubled"} {
		object(totals.Injected[name] == 0, "void: there were no %s", name)
	}
	for _, line := range r.Lines {
		object(line.Of == 0, "void: %q looked at nothing", line.Name)
	}

	// Nobody may be needed to start a program again.
	for name, i := range s.instances {
		if found := i.findings(); len(found) > 0 {
			errs = append(errs, fmt.Errorf("%d times %s ended by itself; first: %s", len(found), name, found[0]))
		}
	}
	return errors.Join(errs...)
}

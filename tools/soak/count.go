package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/traffic"
)

// count waits until everything has arrived and returns what is wrong.
func (s *soaking) count(ctx context.Context) error {
	held := s.pin.held(ctx)
	s.Say("requests have stopped; waiting until every event is relayed and consumed")

	view, err := traffic.OpenView(ctx, s.cluster.owner(), s.brokers, statements.Consumer)
	if err != nil {
		return err
	}
	defer view.Close()

	// The drain may fail because something is lost. The count says what, so go on.
	drained := view.Drain(ctx, func(c traffic.Counts) {
		s.Say("backlog %d, lag %d, %d holds to expire", c.Backlog, c.Lag(), c.Expiring)
	})
	_ = s.pin.conn.Close(ctx)

	s.Say("counting: tables, topics, and what the clients were told")
	report, err := s.check(ctx)
	if err != nil {
		return errors.Join(drained, err)
	}

	s.Say("%d payments (%d declined), %d events, %d records, %d of them repeats", report.Payments,
		report.Declined, report.Events, report.Records, report.Repeated)
	s.Say("%d were authorized: %d captured, %d canceled, %d expired; %d refunds", report.Authorized,
		report.Captured, report.Canceled, report.Expired, report.Refunds)
	s.Say("%d attempts of clients, %d outcomes found by a repeat", report.Exchanges, report.Recovered)

	for _, w := range s.tail.windows {
		s.Say("transaction → reader, %s: p50 %.1f ms, p99 %.1f ms of %d", w.name, w.took.Millis(50),
			w.took.Millis(99), w.took.TotalCount())
	}
	s.Say("the longest, over %d kills and a promotion: %.1f s", s.kills, s.tail.longest.Seconds())

	fmt.Fprintln(s)
	if err := report.WriteTable(s); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}

	err = errors.Join(held, drained, s.objections(report))
	if err == nil {
		fmt.Fprintln(s, "\nok: nothing lost, doubled or out of order; no operator was needed")
	}
	return err
}

func (s *soaking) check(ctx context.Context) (invariant.Report, error) {
	db, err := pgxpool.New(ctx, s.cluster.owner())
	if err != nil {
		return invariant.Report{}, fmt.Errorf("connect to the database: %w", err)
	}
	defer db.Close()

	// Exactly once, nothing may be repeated.
	most := 0
	if !s.exactlyOnce {
		const batch = 2500 // RELAY_BATCH's default; two may be in hand
		most = 2 * batch * (s.kills + s.promotions)
	}

	return invariant.Check(ctx, invariant.Sources{
		DB: db, Brokers: s.brokers, TopicPrefix: s.prefix, Consumer: statements.Consumer,
		History: []string{s.load.History.Path}, MostRepeated: most,
	})
}

// objections returns why the run does not count as good: something is wrong, or the run would not
// have shown it.
func (s *soaking) objections(r invariant.Report) error {
	var errs []error
	object := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	object(!r.OK(), "the count is not clean: see the lines marked WRONG")
	unknown := s.load.History.Unknown.Load()
	object(unknown > 0, "%d requests never had an answer", unknown)

	// A run without its faults, or that looked at nothing, proves nothing.
	object(s.kills < 4 || s.promotions != 1, "void: %d relays were killed and %d standbys promoted",
		s.kills, s.promotions)
	for _, line := range r.Lines {
		object(line.Of == 0, "void: %q looked at nothing", line.Name)
	}
	for what, n := range map[string]int64{
		"captured": r.Captured, "canceled": r.Canceled, "expired": r.Expired, "refunded": r.Refunds,
	} {
		object(n == 0, "void: no payment was %s", what)
	}
	for _, w := range s.tail.windows {
		object(w.took.TotalCount() == 0, "void: no payment arrived at the %s", w.name)
	}

	return errors.Join(append(errs, s.needed())...)
}

// needed returns an error for each program that ended by itself.
func (s *soaking) needed() error {
	var errs []error
	for _, i := range s.instances {
		if found := i.findings(); len(found) > 0 {
			errs = append(errs, fmt.Errorf(
				"an operator was needed: %d times %s ended by itself or did not start; first: %s",
				len(found), i.name, found[0]))
		}
	}

	return errors.Join(errs...)
}

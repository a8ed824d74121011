package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/statements"
)

// verdict is the last line of -check.
type verdict struct {
	OK                bool    `json:"ok"`
	Payments          int64   `json:"payments"`
	Replays           int64   `json:"replays"`
	MismatchesRefused int64   `json:"mismatches_refused"`
	Declined          int64   `json:"declined"`
	Events            int64   `json:"events"`
	Lost              int64   `json:"lost"`               // payments that were acknowledged, events and effects
	DuplicatedEffects int64   `json:"duplicated_effects"` // keys that paid twice, statements that differ from the ledger
	OutOfOrder        int64   `json:"out_of_order"`
	Unbalanced        int64   `json:"unbalanced"` // payments and accounts
	Kills             int     `json:"kills"`
	Seconds           float64 `json:"seconds"`
}

// relayBatch is RELAY_BATCH's default: what a killed relay may send again, at most.
const relayBatch = 1000

// count waits until every event has arrived, compares tables, topics and the clients' history, and prints what it found. Its
// error says what is wrong.
func (d *demo) count(ctx context.Context, l *load, v view) error {
	d.say("requests have stopped; waiting until every event is relayed and consumed")
	notDrained := v.drain(ctx, func(c counts) { d.say("backlog %d, lag %d", c.backlog, c.lag()) })
	if ctx.Err() != nil {
		return errors.New("interrupted before it could count")
	}
	if err := l.history.close(); err != nil {
		return err
	}
	db, err := pgxpool.New(ctx, d.stack.owner())
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer db.Close()
	d.say("counting: tables, topics, and what the clients were told")
	began := time.Now()
	report, err := invariant.Check(ctx, invariant.Sources{
		DB: db, Brokers: d.stack.brokers(), TopicPrefix: "oncepay.", Consumer: statements.Consumer,
		History: []string{l.history.path}, MostRepeated: relayBatch * d.killed("relay"),
		Progress: d.seldom(2 * time.Second),
	})
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	d.say("counted in %.1f s: %d payments, %d events (sent again: %d), %d attempts of clients (cut off: %d)",
		time.Since(began).Seconds(), report.Payments, report.Events, report.Repeated, report.Exchanges, l.history.cut.Load())
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintln(d.out)
	if err := report.WriteTable(d.out); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	fmt.Fprintln(d.out)
	d.verdict = d.judge(report)
	err = errors.Join(notDrained, d.objections(report, l.history))
	if err == nil {
		fmt.Fprintf(d.out, "done: %d payments under %d kills; nothing lost, nothing doubled, nothing out of order, the books balance\n", report.Payments, len(d.kills))
	}
	return err
}

// seldom says what is being done, but not what is done in a moment.
func (d *demo) seldom(pause time.Duration) func(string) {
	last := time.Now()
	return func(doing string) {
		if time.Since(last) >= pause {
			last = time.Now()
			d.say("  %s", doing)
		}
	}
}

func (d *demo) killed(program string) (n int) {
	for _, k := range d.kills {
		if k.program == program {
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
		Payments: r.Payments, Replays: r.Replays, MismatchesRefused: r.MismatchesRefused, Declined: r.Declined, Events: r.Events,
		Lost:              wrong(invariant.AcknowledgedMissing, invariant.EventsMissing, invariant.EventsLost, invariant.EffectsLost),
		DuplicatedEffects: wrong(invariant.KeysTwice, invariant.StatementsWrong),
		OutOfOrder:        wrong(invariant.EventsOutOfOrder),
		Unbalanced:        wrong(invariant.PaymentsUnbalanced, invariant.BalancesWrong),
		Kills:             len(d.kills),
	}
}

// objections says why the run does not count as good: something is wrong, or it would not have been seen.
func (d *demo) objections(r invariant.Report, h *history) error {
	var errs []error
	object := func(when bool, format string, args ...any) {
		if when {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	object(!r.OK(), "the count is not clean: see the lines marked WRONG")
	object(h.unknown.Load() > 0, "%d requests never had an answer", h.unknown.Load())
	if !d.check {
		return errors.Join(errs...)
	}
	for _, p := range programs {
		object(d.killed(p) != 1, "%s was killed %d times, not once", p, d.killed(p))
	}
	for _, k := range d.kills {
		object(k.inFlight < leastInFlight, "only %d requests were in flight when %s was killed: %d make it a test", k.inFlight, k.program, leastInFlight)
	}
	for _, line := range r.Lines {
		object(line.Of == 0, "%q looked at nothing", line.Name)
	}
	for _, saw := range []struct {
		what string
		n    int64
	}{
		{"payment", r.Payments},
		{"event", r.Events},
		{"replay", r.Replays},
		{"refusal of a reused key", r.MismatchesRefused},
		{"declined payment", r.Declined},
		{"request that was cut off", h.cut.Load()},
	} {
		object(saw.n == 0, "there was no %s: nothing was shown", saw.what)
	}
	return errors.Join(errs...)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/traffic"
)

// lookBefore counts what earlier runs left behind, which count subtracts.
func (d *demo) lookBefore(ctx context.Context, v traffic.View) (err error) {
	if err := v.Drain(ctx, func(traffic.Counts) {}); err != nil {
		return err
	}

	d.before, err = d.compare(ctx, invariant.Sources{})
	return err
}

// count waits until every event has arrived, compares tables, topics and the clients' history, and
// prints what it found. Its error is what is wrong.
func (d *demo) count(ctx context.Context, l *traffic.Load, v traffic.View) error {
	d.counted = true
	d.say("requests have stopped; waiting until what is held has expired,")
	d.say("the PSP has answered, and every event is sent and processed")

	notDrained := v.Drain(ctx, func(c traffic.Counts) {
		d.say("still waiting: backlog %d, lag %d, %d holds to expire, %d at the PSP",
			c.Backlog, c.Lag(), c.Expiring, c.AtPSP)
	})
	// What is missing after the wait is in the report, so count all the same.
	if ctx.Err() != nil {
		return errors.New("interrupted before it could count")
	}

	if err := l.History.Close(); err != nil {
		return err
	}

	after, err := d.pspTotals(ctx)
	if err != nil {
		return err
	}
	d.lost = after.Injected[repliesLost] - d.psp.Injected[repliesLost]

	if d.hooks != nil {
		if err := d.awaitWebhooks(ctx); err != nil {
			return err
		}
	}

	d.say("counting in the tables, on the topics, in what the clients were told,")
	d.say("and in the PSP's books")
	// Each killed relay may have two batches repeated: those sent but not yet behind its cursor.
	report, err := d.compare(ctx, invariant.Sources{
		History:      []string{l.History.Path},
		MostRepeated: int(d.before.Repeated) + 2*d.batch()*d.interruptions(),
	})
	if err != nil {
		return err
	}

	// Leave out what earlier runs did.
	report.Payments -= d.before.Payments
	report.Declined -= d.before.Declined
	report.ByCard -= d.before.ByCard
	report.Authorized -= d.before.Authorized
	report.Captured -= d.before.Captured
	report.Canceled -= d.before.Canceled
	report.Expired -= d.before.Expired
	report.Refunds -= d.before.Refunds
	report.Events -= d.before.Events
	report.PaymentEvents -= d.before.PaymentEvents
	report.Repeated -= d.before.Repeated

	d.print(totals(report, l.History.Cut.Load(), d.lost, d.got))
	d.mu.Lock()
	err = report.WriteTable(d.out)
	d.mu.Unlock()
	if err != nil {
		return fmt.Errorf("print the report: %w", err)
	}

	d.verdict = d.judge(report)
	err = errors.Join(notDrained, d.objections(report, l.History))
	if err == nil {
		d.print(fmt.Sprintf("\n%d payments, %d kills: nothing lost, nothing doubled, "+
			"nothing out of order,\nand the books balance.\n", report.Payments, len(d.kills)))
	}

	return err
}

// interruptions is how often a leading relay was killed, or by the page kept from its work.
func (d *demo) interruptions() int {
	n := d.killed(func(k kill) bool { return k.program == "relay" })
	if d.stage != nil {
		n += d.stage.Interruptions()
	}
	return n
}

func (d *demo) awaitWebhooks(ctx context.Context) error {
	db, err := pgxpool.New(ctx, d.stack.Owner())
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}
	defer db.Close()

	d.say("waiting until the webhook receiver has everything")
	d.got, err = d.hooks.await(ctx, db, d.shops[0])
	return err
}

func (d *demo) compare(ctx context.Context, s invariant.Sources) (invariant.Report, error) {
	db, err := pgxpool.New(ctx, d.stack.Owner())
	if err != nil {
		return invariant.Report{}, fmt.Errorf("connect to the database: %w", err)
	}
	defer db.Close()

	s.DB, s.Brokers, s.TopicPrefix, s.Consumer = db, d.stack.Brokers(), local.TopicPrefix, statements.Consumer
	s.Progress = d.seldom(2 * time.Second)
	if s.PSP, err = traffic.ReadBooks(ctx, psp.NewClient(d.stack.PSP(), local.PSPKey, 1)); err != nil {
		return invariant.Report{}, err
	}
	return invariant.Check(ctx, s)
}

// seldom prints progress at most once per pause, so steps that take a moment stay silent.
func (d *demo) seldom(pause time.Duration) func(string) {
	last := time.Now()

	return func(doing string) {
		if time.Since(last) >= pause {
			last = time.Now()
			d.say("  %s", doing)
		}
	}
}

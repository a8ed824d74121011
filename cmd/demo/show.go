package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/child"
)

// The demo's own view: counted in the tables, not by the programs.
const countAll = `
SELECT (SELECT count(*) FROM payments WHERE route <> 'oncepay seed'), (SELECT count(*) FROM outbox_events),
       (SELECT count(*) FROM outbox_events o, outbox_cursors c WHERE o.id > c.last_id), (SELECT count(*) FROM inbox_events)`

type counts struct{ payments, events, backlog, consumed int }

func count(ctx context.Context, conn *pgx.Conn) (c counts, err error) {
	if err := conn.QueryRow(ctx, countAll).Scan(&c.payments, &c.events, &c.backlog, &c.consumed); err != nil {
		return c, fmt.Errorf("count: %w", err)
	}
	return c, nil
}

// show sends traffic and prints a line a second until ctx ends, the demo's time is over or a program ends.
func (d *demo) show(ctx context.Context, t *traffic, conn *pgx.Conn, programs ...*child.Process) error {
	if d.length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.length)
		defer cancel()
	}
	ended := make(chan *child.Process, len(programs))
	for _, p := range programs {
		go func() { <-p.Ended; ended <- p }()
	}
	request, line := time.NewTicker(time.Second/time.Duration(d.rate)), time.NewTicker(time.Second)
	defer request.Stop()
	defer line.Stop()
	for n, before := 0, 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case p := <-ended:
			return p.Err()
		case <-request.C:
			t.next(ctx, n)
			if n++; n == 1 {
				d.say("the first payment is made")
				d.printCurl(t)
			}
		case <-line.C:
			c, err := count(ctx, conn)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			d.say("%6d payments  %4d/s  %5d replays  %5d refused  %3d failed  backlog %4d  consumed %6d of %d events",
				c.payments, c.payments-before, t.replays, t.refused, t.failed, c.backlog, c.consumed, c.events)
			before = c.payments
		}
	}
}

func (d *demo) printCurl(t *traffic) {
	curl := func(amount int) string {
		return fmt.Sprintf("curl -i %s/api/v1/payments -H 'Authorization: Bearer %s' -H 'Idempotency-Key: my-first' -H 'Content-Type: application/json' -d '%s'",
			d.api, d.seed.Token, t.body(0, amount))
	}
	fmt.Fprintf(d.out, `
Paste these into another terminal.

A payment (201):
%s

Its repeat: the same answer, Idempotent-Replayed: true (201):
%s

The same key with another amount (422):
%s

Ctrl-C stops everything.

`, curl(2500), curl(2500), curl(9900))
}

// drain waits until everything accepted has been relayed and consumed, and says how it ended.
func (d *demo) drain(ctx context.Context, conn *pgx.Conn, t *traffic) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := count(ctx, conn)
		if err != nil {
			return err
		}
		if c.backlog == 0 && c.consumed == c.events {
			d.say("done: %d payments, %d replays, %d refused; %d events, all relayed, each consumed once", c.payments, t.replays, t.refused, c.events)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not drained: %d of %d events relayed, %d consumed", c.events-c.backlog, c.events, c.consumed)
		case <-tick.C:
		}
	}
}

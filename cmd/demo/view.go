package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/statements"
)

// The demo's own view while it runs: counted in the tables, not by the programs. Only what the consumer takes: parcels it does not.
const countAll = `
SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM outbox_events WHERE aggregate_type IN ('payments', 'accounts')),
       (SELECT count(*) FROM outbox_events o, outbox_cursors c WHERE o.id > c.last_id AND aggregate_type IN ('payments', 'accounts')), (SELECT count(*) FROM inbox_events WHERE consumer = $1)`

type counts struct{ payments, events, backlog, consumed int }

// lag is how many events the relay has sent and the consumer not yet taken. The relay may be ahead of its cursor.
func (c counts) lag() int { return max(0, c.events-c.backlog-c.consumed) }

type view struct{ conn *pgx.Conn }

func openView(ctx context.Context, url string) (view, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return view{}, fmt.Errorf("connect to the database: %w", err)
	}
	return view{conn}, nil
}

func (v view) count(ctx context.Context) (c counts, err error) {
	if err := v.conn.QueryRow(ctx, countAll, statements.Consumer).Scan(&c.payments, &c.events, &c.backlog, &c.consumed); err != nil {
		return c, fmt.Errorf("count: %w", err)
	}
	return c, nil
}

// drain waits until everything that was committed has been relayed and consumed.
func (v view) drain(ctx context.Context, progress func(counts)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick, line := time.NewTicker(200*time.Millisecond), time.NewTicker(2*time.Second)
	defer tick.Stop()
	defer line.Stop()
	var c counts // the last that was counted: the time may end in the middle of the next
	for {
		now, err := v.count(ctx)
		if err == nil {
			c = now
		}
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil && c.backlog == 0 && c.consumed == c.events:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not drained: of %d events %d are relayed and %d consumed", c.events, c.events-c.backlog, c.consumed)
		case <-line.C:
			progress(c)
		case <-tick.C:
		}
	}
}

func (v view) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = v.conn.Close(ctx) // the server may be gone
}

package traffic

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// countAll counts what happened in the tables; it does not ask the programs. Of the events it counts
// those that the consumer takes.
const countAll = `
SELECT p.*, (SELECT count(*) FROM refunds WHERE status = 'completed'),
  (SELECT count(*) FROM outbox_events WHERE aggregate_type IN ('payments', 'accounts')),
  (SELECT count(*) FROM outbox_events o, outbox_cursors c
   WHERE o.id > c.last_id AND aggregate_type IN ('payments', 'accounts')),
  (SELECT count(*) FROM inbox_events WHERE consumer = $1),
  (SELECT count(*) FROM psp_operations WHERE state IN ('pending', 'unknown') AND next_try_at <> 'infinity')
FROM (
  SELECT count(*), count(*) FILTER (WHERE status = 'authorized'),
    count(*) FILTER (WHERE status = 'authorized' AND authorization_expires_at < now() + $2),
    count(*) FILTER (WHERE status = 'completed' AND authorization_ended_at IS NOT NULL),
    count(*) FILTER (WHERE status = 'canceled'), count(*) FILTER (WHERE status = 'expired')
  FROM payments
) p`

// Counts is the number of rows in the tables.
type Counts struct {
	Payments                    int
	Held                        int // authorized and neither captured, canceled nor expired
	Expiring                    int // of Held, those that will expire while Drain waits
	Captured, Canceled, Expired int
	Refunds                     int
	AtPSP                       int // charges and refunds that have not ended, and will by themselves

	Events, Backlog, Consumed int
}

// Lag returns how many events the relay has sent and the consumer has not yet taken. The relay
// may be ahead of its cursor.
func (c Counts) Lag() int { return max(0, c.Events-c.Backlog-c.Consumed) }

// View watches the tables, and how far the consumer has read.
type View struct {
	conn     *pgx.Conn
	admin    *kadm.Client
	consumer string
}

// OpenView connects as the schema's owner. consumer is both the name in inbox_events and the
// consumer group.
func OpenView(ctx context.Context, url string, brokers []string, consumer string) (View, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return View{}, fmt.Errorf("connect to the database: %w", err)
	}

	admin, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return View{}, fmt.Errorf("make Kafka client: %w", err)
	}
	return View{conn, admin, consumer}, nil
}

// Count counts all rows.
func (v View) Count(ctx context.Context) (c Counts, err error) {
	row := v.conn.QueryRow(ctx, countAll, v.consumer, drainMax)
	err = row.Scan(&c.Payments, &c.Held, &c.Expiring, &c.Captured, &c.Canceled, &c.Expired, &c.Refunds,
		&c.Events, &c.Backlog, &c.Consumed, &c.AtPSP)
	if err != nil {
		return c, fmt.Errorf("count: %w", err)
	}
	return c, nil
}

// Events that were relayed and are not on the topics are lost. A late commit below the cursor is
// sent within milliseconds, so an event missing for longer than lostAfter never comes.
const (
	drainMax  = time.Minute
	lostAfter = 3 * time.Second
)

// Drain waits until the holds that are about to expire have expired, the PSP has answered, and
// everything that was committed has been relayed and consumed. If the relay has
// recorded an event as sent, and the consumer has read the topics to their ends without finding it,
// Drain stops waiting and returns an error.
func (v View) Drain(ctx context.Context, progress func(Counts)) error {
	ctx, cancel := context.WithTimeout(ctx, drainMax)
	defer cancel()

	tick, line := time.NewTicker(200*time.Millisecond), time.NewTicker(2*time.Second)
	defer tick.Stop()
	defer line.Stop()

	var c Counts          // the last count: time may run out during the next
	var readAll time.Time // since when the topics are read to their ends and nothing came
	for {
		now, err := v.Count(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}

		if err == nil {
			if now != c || now.Backlog > 0 || now.Consumed == now.Events || !v.readAll(ctx) {
				readAll = time.Now()
			}
			c = now
		}

		// An error here means that time ran out, which the select reports.
		switch {
		case err != nil:
		case c.Backlog == 0 && c.Consumed == c.Events && c.Expiring == 0 && c.AtPSP == 0:
			return nil
		case time.Since(readAll) > lostAfter:
			return fmt.Errorf("events lost: of %d that were relayed only %d were on the topics",
				c.Events, c.Consumed)
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("not drained: of %d events %d are relayed and %d consumed; "+
				"%d holds have not expired, %d operations of the PSP have not ended",
				c.Events, c.Events-c.Backlog, c.Consumed, c.Expiring, c.AtPSP)
		case <-line.C:
			progress(c)
		case <-tick.C:
		}
	}
}

// readAll reports whether the consumer's group has read all topics to their ends. It returns false
// if the broker does not answer.
func (v View) readAll(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	lags, err := v.admin.Lag(ctx, v.consumer)
	group := lags[v.consumer]
	return err == nil && group.Error() == nil && len(group.Lag) > 0 && group.Lag.Total() == 0
}

// Close closes both connections.
func (v View) Close() {
	v.admin.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = v.conn.Close(ctx) // the server may be gone
}

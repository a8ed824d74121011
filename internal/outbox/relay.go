package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Publisher sends messages to a broker.
type Publisher interface {
	// Publish sends batch and waits for it. Nil: every message is durable, and messages of one aggregate stand in the order
	// of the batch. After an error nothing is known of any message, and the Publisher is closed and thrown away.
	Publish(ctx context.Context, batch []Message) error
	Close()
}

// Relay moves events from the outbox to a broker. Set the fields, then call Run.
type Relay struct {
	DB    *pgxpool.Pool                                // the primary
	Open  func(ctx context.Context) (Publisher, error) // a new Publisher for each term as leader, such as Kafka.Open
	Name  string                                       // relays of one name share one cursor and one leader
	Lease time.Duration                                // how long a leader that vanished is waited for; zero: 3 s
	Batch int                                          // most new events a read; zero: 1,000
	Log   *slog.Logger                                 // nil: slog.Default()

	// Told what happens, for metrics; nil is fine.
	OnPublish func(events int, took time.Duration) // a batch was acknowledged
	OnLeader  func(bool)                           // this relay became leader, or is no longer
	OnError   func(error)                          // a term ended early, or no leader could be elected
}

const (
	busyPoll       = 2 * time.Millisecond   // after traffic: more is likely to come
	idlePoll       = 100 * time.Millisecond // the longest that an event waits for a relay that had nothing to do
	standbyPoll    = 100 * time.Millisecond // how soon a standby sees that the lease is free
	publishTimeout = 30 * time.Second       // a broker that took nothing for so long: step down, another relay may reach it
	settleTimeout  = 5 * time.Second        // how long the batch in hand may take when the relay is to end
	maxBackoff     = 5 * time.Second
)

// Run leads or waits to lead until ctx ends, and returns nil then, when the batch in hand is settled and the lease is given
// back. Outages of database and broker are waited out. The only error is ErrRestored.
func (r *Relay) Run(ctx context.Context) error {
	r.setDefaults()
	host, _ := os.Hostname()
	holder := fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8])
	for failures := 0; ctx.Err() == nil; {
		term, err := elect(ctx, r.DB, r.Name, holder, r.Lease)
		switch {
		case errors.Is(err, ErrRestored):
			return err
		case err == nil && term == nil:
			failures = 0
			sleep(ctx, standbyPoll)
			continue
		case err == nil:
			r.Log.InfoContext(ctx, "leading", "relay", r.Name, "holder", holder, "fencing_token", term.token, "last_id", term.at.Last)
			r.OnLeader(true)
			var progress bool
			progress, err = r.lead(ctx, term)
			r.OnLeader(false)
			if progress {
				failures = 0
			}
		}
		if err != nil && ctx.Err() == nil {
			failures++
			r.OnError(err)
			r.Log.WarnContext(ctx, "relay interrupted, trying again", "relay", r.Name, "failures", failures, "error", err)
			sleep(ctx, rand.N(min(maxBackoff, 50*time.Millisecond<<min(failures, 10))))
		}
	}
	return nil
}

func (r *Relay) setDefaults() {
	if r.Lease == 0 {
		r.Lease = 3 * time.Second
	}
	if r.Batch == 0 {
		r.Batch = 1000
	}
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.OnPublish == nil {
		r.OnPublish = func(int, time.Duration) {}
	}
	if r.OnLeader == nil {
		r.OnLeader = func(bool) {}
	}
	if r.OnError == nil {
		r.OnError = func(error) {}
	}
}

// lead moves batches until ctx ends (nil) or the term does, and says whether it moved any.
func (r *Relay) lead(ctx context.Context, t *term) (progress bool, err error) {
	defer t.release(ctx)
	publisher, err := r.open(ctx, t)
	if err != nil {
		return false, err
	}
	defer publisher.Close()

	reader := newReader(r.Batch)
	wait, renewed := busyPoll, time.Now()
	for ctx.Err() == nil {
		batch, next, err := reader.read(ctx, r.DB, t.at)
		if err != nil {
			return progress, ignoreEnd(ctx, err)
		}
		// Crash point: read but not sent. Nothing happened, the next leader reads the same batch.
		if len(batch) > 0 {
			// This process, or its connection, may have been stopped for longer than the lease: then the batch is stale, and
			// another leader has sent what comes after it.
			if time.Since(renewed) > r.Lease {
				if err := t.renew(ctx); err != nil {
					return progress, ignoreEnd(ctx, err)
				}
				renewed = time.Now()
			}
			if err := r.publish(ctx, t, publisher, batch); err != nil {
				return progress, ignoreEnd(ctx, err)
			}
		}
		// Crash point: sent but the cursor not moved. The batch is sent again, under the same event ids.
		switch {
		case next != t.at: // what is acknowledged is written down even when ctx has just ended
			if err := t.move(context.WithoutCancel(ctx), next); err != nil {
				return progress, err
			}
			progress, renewed, wait = true, time.Now(), busyPoll
		case time.Since(renewed) > r.Lease/3:
			if err := t.renew(ctx); err != nil {
				return progress, ignoreEnd(ctx, err)
			}
			renewed = time.Now()
		}
		if len(batch) < r.Batch {
			sleep(ctx, wait)
			wait = min(2*wait, idlePoll)
		}
	}
	return progress, nil
}

// open makes the term's Publisher, under the lease like publish.
func (r *Relay) open(ctx context.Context, t *term) (p Publisher, err error) {
	err = r.whileLeading(ctx, t, func(ctx context.Context) error {
		p, err = r.Open(ctx)
		return err
	})
	if err != nil && p != nil { // it opened, but the lease was lost meanwhile
		p.Close()
		p = nil
	}
	return p, err
}

func (r *Relay) publish(ctx context.Context, t *term, p Publisher, batch []Message) error {
	start := time.Now()
	// A batch that was begun is finished although ctx ends: half of it may be on the broker already. But a broker that is
	// away does not keep the relay from ending.
	settling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(settleTimeout, cancel) })()
	err := r.whileLeading(settling, t, func(ctx context.Context) error { return p.Publish(ctx, batch) })
	if err == nil {
		r.OnPublish(len(batch), time.Since(start))
	}
	return err
}

// whileLeading runs do and renews the lease meanwhile. It cancels do when the lease is lost, or after publishTimeout.
func (r *Relay) whileLeading(ctx context.Context, t *term, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	tick := time.NewTicker(r.Lease / 3)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if err := t.renew(ctx); err != nil {
				cancel()
				return errors.Join(err, <-done)
			}
		}
	}
}

// ignoreEnd returns nil for errors that only say that ctx has ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

package relay

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

// Relay moves events from the outbox to a broker. Set the fields, then call Run.
type Relay struct {
	DB    *pgxpool.Pool // the primary
	Name  string        // relays of one name share one cursor and one leader
	Lease time.Duration // how long a leader that vanished is waited for; zero: 3 s
	Batch int           // most events a read; zero: 2,500
	Log   *slog.Logger  // nil: slog.Default()

	// Open makes the Publisher of a term, such as Kafka.Open. First it fences the Publishers of earlier terms as far as the
	// broker can, then it reads the progress that they kept; nil: there is none.
	Open func(ctx context.Context, relay string) (Publisher, *Progress, error)

	// Told what happens, for metrics; nil is fine.
	OnRead    func(events int, took time.Duration)       // a read found events
	OnPublish func(events []Message, took time.Duration) // a batch was acknowledged; the events are the relay's again afterwards
	OnPark    func(Message, error)                       // an event was refused, its aggregate is parked
	OnLeader  func(bool)                                 // this relay became leader, or is no longer
	OnError   func(error)                                // a term ended early, or no leader could be elected
}

const (
	busyPoll       = 2 * time.Millisecond   // after traffic: more is likely to come
	idlePoll       = 100 * time.Millisecond // the longest that an event waits for a relay that had nothing to do
	standbyPoll    = 20 * time.Millisecond  // how soon a standby sees that the lease is free
	moveEvery      = 100 * time.Millisecond // how long small batches that are acknowledged wait for the cursor to move behind them
	watchPoll      = time.Second            // how soon a leader sees what an operator has released
	openTimeout    = 5 * time.Second        // or the lease, if that is longer
	publishTimeout = 30 * time.Second       // a broker that took nothing for so long: step down, another relay may reach it
	settleTimeout  = 5 * time.Second        // how long the batch in hand may take when the relay is to end
	maxBackoff     = 5 * time.Second
)

// Run leads or waits to lead until ctx ends, and returns nil then, when the batch in hand is settled and the lease is given
// back. Outages of database and broker are waited out. The only error is ErrRestored.
func (r *Relay) Run(ctx context.Context) error {
	r.setDefaults()
	host, _ := os.Hostname()
	c := &candidate{db: r.DB, relay: r.Name, holder: fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8])}
	c.lease = r.Lease * 5 / 6 // the rest is for a standby to notice: it leads within Lease
	suspicion := suspicion{}
	for failures := 0; ctx.Err() == nil; {
		term, err := c.elect(ctx)
		switch {
		case err == nil && term == nil:
			failures = 0
			sleep(ctx, standbyPoll)
			continue
		case err == nil:
			r.Log.InfoContext(ctx, "leading", "relay", r.Name, "holder", c.holder, "fencing_token", term.token, "last_id", term.at.Last)
			r.OnLeader(true)
			l := &leader{Relay: r, term: term, suspicion: &suspicion}
			err = l.lead(ctx)
			r.OnLeader(false)
			if l.moved {
				failures = 0
			}
		}
		switch {
		case errors.Is(err, ErrRestored):
			return err
		case errors.Is(err, errReleased):
			r.Log.InfoContext(ctx, "dead letters were released", "relay", r.Name)
		case err != nil && ctx.Err() == nil:
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
		r.Batch = 2500
	}
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.OnRead == nil {
		r.OnRead = func(int, time.Duration) {}
	}
	if r.OnPublish == nil {
		r.OnPublish = func([]Message, time.Duration) {}
	}
	if r.OnPark == nil {
		r.OnPark = func(Message, error) {}
	}
	if r.OnLeader == nil {
		r.OnLeader = func(bool) {}
	}
	if r.OnError == nil {
		r.OnError = func(error) {}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

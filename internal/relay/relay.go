package relay

import (
	"cmp"
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

// Relay sends the events of an outbox to a broker. Set the fields, then call Run.
type Relay struct {
	DB *pgxpool.Pool // the primary

	// Name is what relays that share a cursor and a leader have in common; empty: "main". It is
	// also in the names of Kafka's progress topic and transactional id. A relay with a new name
	// starts from the beginning: it sends every event again that the outbox still holds. Delete the
	// old row of outbox_cursors then, or its partitions are never dropped.
	Name  string
	Lease time.Duration // how long a leader that vanished is waited for; zero: 3 s
	Batch int           // the most events of a read; zero: 2,500

	// Holder names this run of this process in the cursor's row; empty: NewHolder(). No other run may
	// have the same.
	Holder string

	Log *slog.Logger // nil: slog.Default()

	// Open makes the Publisher of a term, such as kafka.Producer.Open. It first fences the
	// Publishers of earlier terms as far as the broker can, then reads the progress that they kept;
	// nil: there is none. cursor is the id of the cursor's row: another database may have a relay of
	// this name.
	Open func(ctx context.Context, relay, cursor string) (Publisher, *Progress, error)

	// Hooks for metrics; nil is fine.
	OnRead    func(events int, took time.Duration)       // a read found events
	OnPublish func(events []Message, took time.Duration) // the broker has them
	OnLeader  func(bool)                                 // this relay leads, or no longer
	OnError   func(error)                                // a term ended early, or no election
}

const (
	busyPoll       = 2 * time.Millisecond   // after traffic: more is likely to come
	idlePoll       = 100 * time.Millisecond // the longest that an event waits for an idle relay
	standbyPoll    = 20 * time.Millisecond  // how soon a standby sees that the lease is free
	moveEvery      = 100 * time.Millisecond // how long small batches wait for the cursor to move
	watchPoll      = time.Second            // how soon a leader sees what an operator has released
	openTimeout    = 5 * time.Second        // or the lease, if that is longer
	publishTimeout = 30 * time.Second       // then step down: another relay may reach the broker
	settleTimeout  = 5 * time.Second        // how long finishing may take
	maxBackoff     = 5 * time.Second
)

// Run leads or stands by until ctx ends. Then it settles the batch in hand, gives the lease back,
// and returns nil. It waits out outages of database and broker; the only error is ErrRestored.
func (r *Relay) Run(ctx context.Context) error {
	r.setDefaults()
	isolation := isolation{}
	for failures := 0; ctx.Err() == nil; {
		// A standby needs the last sixth of the lease to notice, so that it leads within Lease.
		term, err := elect(ctx, r.DB, r.Name, r.Holder, r.Lease*5/6)
		if err == nil && term == nil {
			failures = 0
			sleep(ctx, standbyPoll)
			continue
		}
		if err == nil {
			r.Log.InfoContext(ctx, "leading", "relay", r.Name, "holder", r.Holder,
				"fencing_token", term.token, "last_id", term.at.Last)
			l, began := &leader{Relay: r, term: term, isolation: &isolation}, term.at
			r.OnLeader(true)
			err = l.lead(ctx)
			r.OnLeader(false)
			if term.at != began {
				failures = 0
			}
		}

		// Everything but a restored database is waited out.
		switch {
		case errors.Is(err, ErrRestored):
			return err
		case errors.Is(err, errReleased):
			r.Log.InfoContext(ctx, "dead letters were released", "relay", r.Name)
		case err != nil && ctx.Err() == nil:
			failures++
			r.OnError(err)
			r.Log.WarnContext(ctx, "relay interrupted, trying again", "relay", r.Name,
				"failures", failures, "error", err)
			sleep(ctx, rand.N(min(maxBackoff, 50*time.Millisecond<<min(failures, 10))))
		}
	}

	return nil
}

// NewHolder returns a new name for this process: host, process id and something random.
func NewHolder() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8])
}

func (r *Relay) setDefaults() {
	r.Name = cmp.Or(r.Name, "main")
	r.Holder = cmp.Or(r.Holder, NewHolder())
	r.Lease = cmp.Or(r.Lease, 3*time.Second)
	r.Batch = cmp.Or(r.Batch, 2500)
	r.Log = cmp.Or(r.Log, slog.Default())

	if r.OnRead == nil {
		r.OnRead = func(int, time.Duration) {}
	}

	if r.OnPublish == nil {
		r.OnPublish = func([]Message, time.Duration) {}
	}

	if r.OnLeader == nil {
		r.OnLeader = func(bool) {}
	}

	if r.OnError == nil {
		r.OnError = func(error) {}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

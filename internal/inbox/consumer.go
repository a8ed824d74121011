package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Event is a CloudEvent as it was received. The inbox finds it by ID and the UTC day of Time.
type Event struct {
	ID       uuid.UUID // the deduplication key
	Type     string    // such as payment.completed
	Source   string
	Subject  string    // the aggregate it is about; may be empty
	Time     time.Time // when it happened, the same on every delivery; zero: not given
	Sequence int64     // the aggregate's version; zero: not given
	Key      []byte    // the record's: one topic and key is one aggregate; empty: no aggregate
	Payload  []byte

	Attributes map[string]string // extension attributes, without ce_: tenantid …
	Headers    map[string]string // headers that are not attributes: content-type, traceparent …

	// The record's position, for logs only: a broker that is reset assigns the same ones again.
	Topic     string
	Partition int32
	Offset    int64
}

// Beginner starts transactions, each on a connection that was not already broken. A *pgxpool.Pool
// is one.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Outcomes of an event, as passed to OnEvent.
const (
	Processed = "processed" // it took effect
	Duplicate = "duplicate" // it had taken effect before
	Failed    = "failed"    // it will be retried, and its partition waits
	Parked    = "parked"    // it is a dead letter, or waits behind one
)

// Consumer makes each event on its topics take effect once. Set the fields, then call Run once.
type Consumer struct {
	DB    Beginner
	Kafka Kafka

	// Name is stored in the inbox with each event. It identifies the effect, not the group: under a
	// new name every redelivered event takes effect again.
	Name string

	// Handle writes the effect of one or more events through tx and nothing else. They are of one
	// partition, in order, and each is new. Handle ignores events it has no use for, and returns an
	// error for one it does not understand: then none of them takes effect, and Handle is called
	// again with fewer to find the one that fails. Calls overlap: dead letters are processed while
	// events arrive.
	Handle func(ctx context.Context, tx pgx.Tx, events []Event) error

	Log *slog.Logger // nil: slog.Default()

	// Tries and TryFor are how often, and over how long, an event is tried before it becomes a
	// dead letter; its partition waits meanwhile. Default: 5 times within about 30 s, which
	// outlives a deadlock or a deploy in progress. Outages of the database do not count. Timeouts
	// count apart, since a held lock or a slow database says nothing about the event: in total it
	// is tried twice as often, at most TryFor apart; by default 10 times within 3 to 5 minutes.
	Tries  int
	TryFor time.Duration

	// MaxDeadLetters is how many dead letters may wait for a decision; default 20. At the limit a
	// handler that fails every event stops its partitions and parks nothing more: that many
	// different faults are one fault of the program.
	MaxDeadLetters int

	// Retention is how long the inbox remembers an event, by the event's own time; default 30
	// days. It must be longer than the topics may keep a record: while it is not, nothing is
	// dropped, and OnHorizon and the log say so.
	Retention time.Duration

	// StallAfter is for how long records may wait on a partition while the broker sees none of them
	// done, before Ready and OnStall say so; default 50 s. That is five sessions (10 s), and longer
	// than the tries of an event that fails.
	StallAfter time.Duration

	// Callbacks for metrics; each may be nil. took is the time of the event's transaction. OnLag
	// counts events of the assigned partitions, OnLetters dead letters that wait for a decision.
	OnEvent   func(outcome string, took time.Duration) // each event
	OnLag     func(events int64)                       // every 2 s: events still to do
	OnLetters func(undecided, aggregates int64)        // every second: dead letters, aggregates
	OnGap     func(kind string)                        // each event out of sequence
	OnHorizon func(err error)                          // every 10 min; why no day is dropped, or nil
	OnStall   func(err error)                          // every 2 s: partitions that do not move, or nil

	// Trace starts a span for an event from its headers and returns a function that ends it. The
	// handler gets the context when the event is alone in its transaction. May be nil.
	Trace func(context.Context, Event) (context.Context, func(error))

	broker atomic.Pointer[answer] // nil before it was asked
	stalls stalls
}

// answer is what the broker answered last.
type answer struct {
	err error
	at  time.Time
}

const (
	attemptTimeout = 15 * time.Second       // for what the session's own limits did not end
	passLimit      = 10 * time.Second       // how long a rebalance and other partitions wait
	watchEvery     = 2 * time.Second        // lag, and whether the broker answers
	watchTimeout   = 4 * time.Second        // of one question
	watchMost      = 20 * time.Second       // older answers say nothing any more
	firstBackoff   = 100 * time.Millisecond // doubled each time
	outageBackoff  = 5 * time.Second        // the longest a database that is back waits for us
	failureBackoff = 30 * time.Second       // the longest wait of a partition that cannot park
	commitBackoff  = time.Second
	fetchBackoff   = time.Second
)

// Run consumes until ctx ends. It then settles the batch in hand, commits its offsets, leaves the
// group and returns nil. It waits out outages of the database and the broker. The only error is a
// configuration that Kafka's client refuses.
func (c *Consumer) Run(ctx context.Context) error {
	c.setDefaults()

	m, err := c.Kafka.join()
	if err != nil {
		return err
	}

	var watch sync.WaitGroup
	watch.Go(func() { c.watch(ctx, m) })
	watch.Go(func() { (&releaser{Consumer: c, slow: map[int64]timeouts{}}).run(ctx) })
	watch.Go(func() { c.upkeep(ctx, m) })

	s := &session{
		Consumer: c, member: m,
		work: map[partition]*backlog{}, done: map[partition]message{},
	}
	var wake time.Time
	for ctx.Err() == nil {
		fetched, lost, err := m.poll(ctx, wake)
		s.forget(lost) // first: a lost partition may be back among what was fetched
		s.take(fetched)

		wake = s.pass(ctx)
		m.yield()

		if err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "broker cannot be read, trying again", "error", err)
			sleep(ctx, fetchBackoff)
		}
	}

	watch.Wait()
	if err := m.leave(ctx); err != nil {
		c.Log.WarnContext(ctx, "left without saying so, the partitions wait for the session to end",
			"error", err)
	}

	return nil
}

// Ready returns why nothing is consumed at present, as far as the broker can tell, or nil: it is away,
// a topic is missing, or records wait on a partition of ours and none of them is done.
//
// It is for readiness and alarms, not for a supervisor that restarts: neither a broker nor a database
// comes back by that, and a partition that stopped at MaxDeadLetters needs a person or a new handler.
// Only a handler that never returns is cured by a restart, or by the broker: it gives the partitions
// to another member with the next rebalance.
func (c *Consumer) Ready(context.Context) error {
	switch last := c.broker.Load(); {
	case last == nil:
		return errors.New("the broker has not been asked yet")
	case last.err != nil:
		return last.err
	case time.Since(last.at) > watchMost:
		return fmt.Errorf("the broker has not answered for %s", time.Since(last.at).Round(time.Second))
	}
	return c.stalls.err()
}

func (c *Consumer) setDefaults() {
	if c.Log == nil {
		c.Log = slog.Default()
	}

	c.Tries = cmp.Or(c.Tries, 5)
	c.TryFor = cmp.Or(c.TryFor, 30*time.Second)
	c.MaxDeadLetters = cmp.Or(c.MaxDeadLetters, 20)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.StallAfter = cmp.Or(c.StallAfter, 5*sessionTimeout)

	if c.OnLetters == nil {
		c.OnLetters = func(int64, int64) {}
	}
	if c.OnGap == nil {
		c.OnGap = func(string) {}
	}
	if c.OnHorizon == nil {
		c.OnHorizon = func(error) {}
	}
	if c.OnStall == nil {
		c.OnStall = func(error) {}
	}
	if c.OnEvent == nil {
		c.OnEvent = func(string, time.Duration) {}
	}
	if c.OnLag == nil {
		c.OnLag = func(int64) {}
	}
	if c.Trace == nil {
		c.Trace = func(ctx context.Context, _ Event) (context.Context, func(error)) {
			return ctx, func(error) {}
		}
	}
}

// watch measures the lag, looks for partitions that do not move, and logs when the broker or a topic
// goes away and comes back.
func (c *Consumer) watch(ctx context.Context, m *member) {
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, watchTimeout)
		lag, behind, missing, err := m.lag(asking)
		cancel()

		if err == nil {
			c.OnLag(lag)
			asking, cancel := context.WithTimeout(ctx, watchTimeout)
			err = c.lookForStall(asking, m, behind)
			cancel()
		}
		if len(missing) > 0 {
			err = fmt.Errorf("waiting for topics that do not exist: %s", strings.Join(missing, ", "))
		}

		if ctx.Err() == nil {
			c.report(ctx, err)
		}

		sleep(ctx, watchEvery)
	}
}

// report keeps the broker's last answer for Ready and logs it when it changes.
func (c *Consumer) report(ctx context.Context, err error) {
	before := c.broker.Swap(&answer{err, time.Now()})
	switch {
	case err == nil && (before == nil || before.err != nil):
		c.Log.InfoContext(ctx, "consuming", "group", c.Kafka.Group, "topics", c.Kafka.Topics)
	case err != nil && (before == nil || before.err == nil || before.err.Error() != err.Error()):
		c.Log.WarnContext(ctx, "broker or topic away, waiting", "error", err)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

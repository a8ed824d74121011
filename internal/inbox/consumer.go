package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Event is a CloudEvent as it was received.
type Event struct {
	ID       uuid.UUID // what it is deduplicated by
	Type     string    // such as payment.completed
	Source   string
	Subject  string    // the aggregate it is about; may be empty
	Time     time.Time // when it happened, the same on every delivery: the inbox knows it by its day. Zero: not given
	Sequence int64     // the aggregate's version; zero: not given
	Key      []byte    // the record's: events of one topic and key are of one aggregate; empty: of none
	Payload  []byte
	Headers  map[string]string // those that are no attributes: content-type, traceparent …

	// Where it stood. For logs: a broker that is reset hands these out again.
	Topic     string
	Partition int32
	Offset    int64
}

// Beginner starts transactions, each on a connection that was not broken before. A *pgxpool.Pool is one.
type Beginner interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Outcomes of an event, as OnEvent is told them.
const (
	Processed = "processed" // it took effect
	Duplicate = "duplicate" // it had taken effect before
	Failed    = "failed"    // it will be tried again, and its partition waits
	Parked    = "parked"    // it is a dead letter, or waits behind one
)

// Consumer lets each event on its topics take effect once. Set the fields, then call Run, once.
type Consumer struct {
	DB    Beginner
	Kafka Kafka
	// Name stands in the inbox beside each event. It belongs to the effect, not to the group: a consumer that is renamed
	// does everything again that is delivered again.
	Name string
	// Handle writes the effect of events, one or more, all of one partition, in order and each for the first time, with tx
	// and with nothing else. It skips what it does not care for by doing nothing, and refuses what it does not understand
	// by an error: then nothing of them took effect. It is called again with fewer, to find out which one it is. Calls
	// overlap: dead letters are processed beside what arrives.
	Handle func(ctx context.Context, tx pgx.Tx, events []Event) error
	Log    *slog.Logger // nil: slog.Default()

	// How often, and over how long, an event is tried before it becomes a dead letter; its partition waits meanwhile.
	// Default: 5 times within about 30 s, which outlives a deadlock or a deploy in progress. Outages of the database are no
	// tries. Timeouts count apart, since a lock that is held or a slow database says nothing about the event: all in all it
	// is tried twice as often, at most TryFor apart; by default 10 times within 3 to 5 minutes.
	Tries  int
	TryFor time.Duration
	// How many dead letters may wait for a decision; default 20. A handler that fails every event stops its partitions then
	// and parks nothing more: that many different faults are one fault of the program.
	MaxDeadLetters int
	// For how long the inbox knows an event, by the event's own time; default 30 days. It must be longer than the topics may
	// keep a record: while it is not, nothing is dropped, and OnHorizon and the log say so.
	Retention time.Duration

	// Told what happens, for metrics; nil is fine.
	OnEvent   func(outcome string, took time.Duration) // for each event, with the time that its transaction took
	OnLag     func(events int64)                       // those on the assigned partitions that are not done yet, every 2 s
	OnLetters func(undecided, aggregates int64)        // dead letters that wait for a decision, and parked aggregates, every second
	OnGap     func(kind string)                        // for each event that is out of sequence
	OnHorizon func(err error)                          // every 10 minutes; not nil: why no day of the inbox is dropped
	// Trace starts a span for an event, from what its headers say, and returns how to end it. The context is the handler's
	// when the event is alone in its transaction. Nil is fine.
	Trace func(context.Context, Event) (context.Context, func(error))

	mu       sync.Mutex
	asked    bool  // the broker, at least once
	notReady error // its last answer
}

const (
	attemptTimeout = 15 * time.Second       // when the session's own limits did not end a transaction
	passLimit      = 10 * time.Second       // how long other partitions, and a rebalance, wait for those before them
	watchEvery     = 2 * time.Second        // lag, and whether the broker is there
	firstBackoff   = 100 * time.Millisecond // doubled each time
	outageBackoff  = 5 * time.Second        // the longest that a database that is back waits for us
	failureBackoff = 30 * time.Second       // how long a partition waits that must not park any more
	commitBackoff  = time.Second
	fetchBackoff   = time.Second
)

// Run consumes until ctx ends, and returns nil then, when the batch in hand is settled, its offsets are committed and the
// group is left. Outages of database and broker are waited out. The only error is a configuration that Kafka's client
// refuses.
func (c *Consumer) Run(ctx context.Context) error {
	c.setDefaults()
	m, err := c.Kafka.join()
	if err != nil {
		return err
	}
	var watch sync.WaitGroup
	watch.Go(func() { c.watch(ctx, m) })
	watch.Go(func() { c.releaseLetters(ctx) })
	watch.Go(func() { c.upkeep(ctx, m) })

	s := &session{Consumer: c, member: m, work: map[partition]*backlog{}, done: map[partition]int64{}}
	var wake time.Time
	for ctx.Err() == nil {
		fetched, lost, err := m.poll(ctx, wake)
		s.forget(lost)
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
		c.Log.WarnContext(ctx, "left without saying so, the partitions wait for the session to end", "error", err)
	}
	return nil
}

// Ready returns why nothing can be consumed at present, as far as the broker is concerned.
func (c *Consumer) Ready(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked {
		return errors.New("the broker has not been asked yet")
	}
	return c.notReady
}

func (c *Consumer) setDefaults() {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.Tries = cmp.Or(c.Tries, 5)
	c.TryFor = cmp.Or(c.TryFor, 30*time.Second)
	c.MaxDeadLetters = cmp.Or(c.MaxDeadLetters, 20)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	if c.OnLetters == nil {
		c.OnLetters = func(int64, int64) {}
	}
	if c.OnGap == nil {
		c.OnGap = func(string) {}
	}
	if c.OnHorizon == nil {
		c.OnHorizon = func(error) {}
	}
	if c.OnEvent == nil {
		c.OnEvent = func(string, time.Duration) {}
	}
	if c.OnLag == nil {
		c.OnLag = func(int64) {}
	}
	if c.Trace == nil {
		c.Trace = func(ctx context.Context, _ Event) (context.Context, func(error)) { return ctx, func(error) {} }
	}
}

// watch measures the lag and says when the broker, or a topic, is away and back.
func (c *Consumer) watch(ctx context.Context, m *member) {
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, 2*watchEvery)
		lag, missing, err := m.lag(asking)
		cancel()
		if err == nil {
			c.OnLag(lag)
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

func (c *Consumer) report(ctx context.Context, err error) {
	c.mu.Lock()
	first, before := !c.asked, c.notReady
	c.asked, c.notReady = true, err
	c.mu.Unlock()
	switch {
	case err == nil && (first || before != nil):
		c.Log.InfoContext(ctx, "consuming", "group", c.Kafka.Group, "topics", c.Kafka.Topics)
	case err != nil && (before == nil || before.Error() != err.Error()):
		c.Log.WarnContext(ctx, "broker or topic away, waiting", "error", err)
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

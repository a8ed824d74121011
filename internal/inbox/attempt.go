package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNoTime means that an event has no ce_time.
var errNoTime = fmt.Errorf("%w: it has no ce_time", ErrForgotten)

// attempt does messages of one partition in one transaction, all of them or none. Events done
// before are skipped; events of parked aggregates are parked too.
func (c *Consumer) attempt(ctx context.Context, ms []message) (err error) {
	if len(ms) == 0 {
		return nil
	}
	if ms[0].err != nil { // a record that is no event comes alone
		return fmt.Errorf("read event: %w", ms[0].err)
	}

	start := time.Now()
	handling := ctx
	for _, m := range ms {
		spanned, end := c.Trace(ctx, m.event)
		defer func() { end(err) }()
		if len(ms) == 1 {
			handling = spanned
		}
	}

	var outcomes []string
	var gaps []gap
	do := func(ctx context.Context, tx pgx.Tx) (err error) {
		outcomes, gaps, err = c.take(ctx, tx, ms)
		return err
	}

	// The days usually exist. Make them only when the insert fails for lack of one.
	err = c.transact(handling, do)
	if errors.Is(err, ErrNoDay) {
		if err = c.makeDays(ctx, ms); err == nil {
			err = c.transact(handling, do)
		}
	}
	if err != nil {
		return err
	}

	c.tell(ctx, outcomes, time.Since(start), gaps)
	return nil
}

// tell reports events that have taken effect, or need not any more.
func (c *Consumer) tell(
	ctx context.Context, outcomes []string, took time.Duration, gaps []gap,
) {
	for _, outcome := range outcomes {
		c.OnEvent(outcome, took)
	}
	c.tellGaps(ctx, gaps)
}

// take does messages within a transaction and returns what happened to each.
func (c *Consumer) take(
	ctx context.Context, tx pgx.Tx, ms []message,
) (outcomes []string, gaps []gap, err error) {
	known, err := c.standings(ctx, tx, ms)
	if err != nil {
		return nil, nil, waited(err, len(ms))
	}

	// Sort out what is parked, what is a letter already, and what may be new.
	var behind []message
	var candidates []Event
	for i, m := range ms {
		switch known[i] {
		case Parked:
			behind = append(behind, m)
			outcomes = append(outcomes, Parked)
		case Duplicate:
			outcomes = append(outcomes, Duplicate)
		default:
			candidates = append(candidates, m.event)
		}
	}

	if len(candidates) > 0 {
		var more []string
		if more, gaps, err = c.effect(ctx, tx, candidates, false); err != nil {
			return nil, nil, err
		}
		outcomes = append(outcomes, more...)
	}

	if len(behind) > 0 {
		err = waited(c.store(ctx, tx, behind, "", 0, false), len(ms))
	}
	return outcomes, gaps, err
}

// effect makes the new ones among events take effect, and returns what happened to each. Asserted:
// an operator says of the only event that it is new, and the inbox may not cover its day.
func (c *Consumer) effect(
	ctx context.Context, tx pgx.Tx, events []Event, asserted bool,
) (outcomes []string, gaps []gap, err error) {
	// Note the events before the handler runs: of two transactions with one event, the second
	// waits here for the first.
	first, err := c.note(ctx, tx, events, asserted)
	if err != nil {
		return nil, nil, waited(err, len(events))
	}

	var news []Event
	for i, e := range events {
		if first[i] {
			news = append(news, e)
			outcomes = append(outcomes, Processed)
		} else {
			outcomes = append(outcomes, Duplicate)
		}
	}
	if len(news) == 0 {
		return outcomes, nil, nil
	}

	if err := c.handle(ctx, tx, news); err != nil {
		return nil, nil, fmt.Errorf("handle: %w", err)
	}
	gaps, err = c.moveSequences(ctx, tx, news)
	return outcomes, gaps, waited(err, len(events))
}

// note notes events in the inbox and returns which of them are new.
func (c *Consumer) note(
	ctx context.Context, tx pgx.Tx, events []Event, asserted bool,
) (first []bool, err error) {
	ids, times := make([]uuid.UUID, len(events)), make([]time.Time, len(events))
	for i, e := range events {
		if e.Time.IsZero() && !asserted {
			return nil, errNoTime
		}
		ids[i], times[i] = e.ID, e.Time
	}
	if !asserted {
		return OnceEach(ctx, tx, c.Name, ids, times)
	}

	// At midnight one instance may process an event of the new day while another makes a letter
	// of it, so the inbox is asked all the same. A savepoint, because without a partition for the
	// day the insert fails.
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		first, err = OnceEach(ctx, tx, c.Name, ids, times)
		return err
	})
	if errors.Is(err, ErrNoDay) {
		return []bool{true}, nil
	}
	return first, err
}

// makeDays makes the inbox partitions that the messages need. To wait for a lock on the inbox is
// an outage: it says nothing about the events.
func (c *Consumer) makeDays(ctx context.Context, ms []message) error {
	times := make([]time.Time, len(ms))
	for i, m := range ms {
		times[i] = m.event.Time
	}

	err := MakeDays(ctx, c.DB, times...)
	if err == nil || errors.Is(err, ErrForgotten) {
		return err
	}
	return waited(classify(err, sqlState(err) == ""), 1)
}

// maxRaces is how often a transaction that loses races is tried before its events are blamed.
const maxRaces = 3

// transact runs do in a transaction, and again if it lost a race against another one.
func (c *Consumer) transact(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	err := c.try(ctx, do)
	for n := 1; lostRace(err) && n < maxRaces; n++ {
		err = c.try(ctx, do)
	}
	return err
}

// try runs do in a transaction. Once begun, it is settled even if ctx ends.
func (c *Consumer) try(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	beginning, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	tx, err := c.DB.BeginTx(beginning, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return outage(fmt.Errorf("begin: %w", err))
	}

	// From here on a shutdown lets the work in hand finish.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // if it fails, pgx closes the connection, which rolls back too
	}()

	switch err := do(ctx, tx); {
	case err != nil && ctx.Err() != nil:
		// It began but did not end in time. If the database is away, the next one will not begin.
		return fmt.Errorf("%w than %s: %w", errTooLong, attemptTimeout, err)
	case err != nil:
		return classify(ignored(err), tx.Conn().IsClosed())
	}

	// Crash point: everything is written, nothing is committed. It never happened.
	err = tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	// The handler ignored a failed statement, or ended the transaction itself.
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, pgx.ErrTxClosed):
		return fmt.Errorf("commit: %w", err)
	}
	// Without a reply the outcome is open. If it did commit, the inbox knows the events.
	return classify(ignored(fmt.Errorf("commit: %w", err)), sqlState(err) == "")
}

// handle calls the handler. A panic counts as an error of the event, so that one bad event does not
// take the other partitions down.
func (c *Consumer) handle(ctx context.Context, tx pgx.Tx, events []Event) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.Log.ErrorContext(ctx, "handler panicked", "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
		if err != nil && sqlState(err) == "" && tx.Conn().IsClosed() {
			err = fmt.Errorf("%w: %w", errBroken, err)
		}
	}()

	return c.Handle(ctx, tx, events)
}

// sqlState returns the SQLSTATE of an error that Postgres answered with, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// lostRace reports whether another transaction was in the way: that of a member about to lose the
// partition, for example.
func lostRace(err error) bool {
	return slices.Contains([]string{"40001", "40P01", "55P03"}, sqlState(err))
}

// errTooLong means that a transaction did not end in time, nor by any of the session's limits.
var errTooLong = errors.New("it took longer")

// errBroken means that the connection was lost in the handler. The database may be away, or the
// event makes it crash: repeated without limit, that would stop every partition and other programs.
var errBroken = errors.New("connection lost in the handler")

// ignored notes that a statement could not even be sent: the connection was lost before, in the
// handler, which said nothing.
func ignored(err error) error {
	if pgconn.SafeToRetry(err) && !errors.Is(err, errBroken) {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	return err
}

// timedOut reports whether err is a timeout, which may be no fault of the event: another
// transaction holds its rows, such as a COMMIT waiting for its standby, or the database is slow.
func timedOut(err error) bool {
	// Statement, lock, idle and transaction timeout.
	return errors.Is(err, errTooLong) || errors.Is(err, errBroken) ||
		slices.Contains([]string{"57014", "55P03", "25P03", "25P04"}, sqlState(err))
}

// errOutage means that the database was unusable: any other event would have failed the same way.
var errOutage = errors.New("no database")

func outage(err error) error { return fmt.Errorf("%w: %w", errOutage, err) }

// waited turns a timeout of the inbox's own statement for one event into an outage. Such a
// statement takes a moment unless another transaction holds the row: that of a member that
// vanished, or a COMMIT waiting for its standby, for as long as the standby is away. With many
// events their number may be the cause, so they are done one by one instead.
func waited(err error, events int) error {
	if code := sqlState(err); events == 1 && (code == "57014" || code == "55P03") {
		return outage(err)
	}
	return err
}

// classify separates outages from failures of an event. lost is whether the connection is lost.
func classify(err error, lost bool) error {
	code := sqlState(err)
	switch {
	// A statement or transaction that takes too long is the event's failure, although the last
	// two cost the connection.
	case code == "57014", code == "25P03", code == "25P04", errors.Is(err, errBroken):
		return err
	case code == "25006": // a primary that was demoted
		return outage(err)
	}

	// Connection, resources, shutdown or recovery, system.
	if lost || slices.Contains([]string{"08", "53", "57", "58"}, code[:min(2, len(code))]) {
		return outage(err)
	}
	return err
}

// backoff doubles with each failure up to longest. Half of it is random, so that many consumers do
// not come back at once.
func backoff(failures int, first, longest time.Duration) time.Duration {
	d := min(longest, first<<min(failures-1, 20))
	return d/2 + rand.N(d/2+1)
}

// pause returns how long to wait after that many failures in a row of an event: at most TryFor
// between the first Tries attempts together.
func (c *Consumer) pause(failures int) time.Duration {
	return backoff(failures, c.TryFor/time.Duration(max(1, 1<<min(c.Tries-1, 20)-1)), c.TryFor)
}

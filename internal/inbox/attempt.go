package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
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
	err = c.race(handling, do)
	if errors.Is(err, ErrNoDay) {
		if err = c.makeDays(ctx, ms); err == nil {
			err = c.race(handling, do)
		}
	}
	if err != nil {
		return err
	}

	took := time.Since(start)
	for _, outcome := range outcomes {
		c.OnEvent(outcome, took)
	}
	c.tellGaps(ctx, gaps)
	return nil
}

// take does messages within a transaction and returns what happened to each.
func (c *Consumer) take(
	ctx context.Context, tx pgx.Tx, ms []message,
) (outcomes []string, gaps []gap, err error) {
	ids, keys := make([]uuid.UUID, len(ms)), make([][]byte, len(ms))
	for i, m := range ms {
		ids[i], keys[i] = m.event.ID, filled(m.event.Key)
	}

	found, err := c.standings(ctx, tx, ms[0].event.Topic, ids, keys)
	if err != nil {
		return nil, nil, waited(err, len(ms))
	}

	// Sort out what is parked, what is a letter already, and what may be new.
	var behind []letter
	var candidates []Event
	var times []time.Time
	ids = ids[:0]

	for i, m := range ms {
		switch found[i] {
		case waiting:
			behind = append(behind, m.letter("", 0))
			outcomes = append(outcomes, Parked)
		case stored:
			outcomes = append(outcomes, Duplicate)
		case free:
			if m.event.Time.IsZero() {
				return nil, nil, errNoTime
			}
			candidates, ids, times = append(candidates, m.event),
				append(ids, m.event.ID), append(times, m.event.Time)
		}
	}

	// Note the candidates before the handler runs: of two transactions with one event, the second
	// waits here for the first.
	var news []Event
	if len(candidates) > 0 {
		first, err := OnceEach(ctx, tx, c.Name, ids, times)
		if err != nil {
			return nil, nil, waited(err, len(ms))
		}

		for i, e := range candidates {
			if first[i] {
				news = append(news, e)
				outcomes = append(outcomes, Processed)
			} else {
				outcomes = append(outcomes, Duplicate)
			}
		}
	}

	if len(news) > 0 {
		if err := c.handle(ctx, tx, news); err != nil {
			return nil, nil, fmt.Errorf("handle: %w", err)
		}
		if gaps, err = c.moveSequences(ctx, tx, news); err != nil {
			return nil, nil, waited(err, len(ms))
		}
	}

	if len(behind) > 0 {
		err = waited(c.store(ctx, tx, behind), len(ms))
	}

	return outcomes, gaps, err
}

// makeDays makes the inbox partitions that the messages need.
func (c *Consumer) makeDays(ctx context.Context, ms []message) error {
	var times []time.Time
	for _, m := range ms {
		if !m.event.Time.IsZero() {
			times = append(times, m.event.Time)
		}
	}

	err := MakeDays(ctx, c.DB, times...)
	var pg *pgconn.PgError
	if err == nil || errors.Is(err, ErrForgotten) {
		return err
	}
	return classify(err, !errors.As(err, &pg))
}

// race runs a transaction, and runs it again if it lost a race against another one.
func (c *Consumer) race(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	err := c.transact(ctx, do)
	for n := 1; lostRace(err) && n < maxRaces; n++ {
		err = c.transact(ctx, do)
	}
	return err
}

// transact runs do in a transaction. Once begun, it is settled even if ctx ends.
func (c *Consumer) transact(ctx context.Context, do func(context.Context, pgx.Tx) error) error {
	beginning, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	tx, err := c.DB.BeginTx(beginning, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return &outageError{fmt.Errorf("begin: %w", err)}
	}

	// From here on a shutdown lets the work in hand finish.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()

	committed := false
	defer func() {
		if !committed {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = tx.Rollback(ctx) // if it fails, pgx closes the connection, which rolls back too
		}
	}()

	switch err := do(ctx, tx); {
	case err != nil && ctx.Err() != nil:
		// It began but did not end in time. If the database is away, the next one will not begin.
		return fmt.Errorf("%w than %s: %w", errTooLong, attemptTimeout, err)
	case err != nil:
		return classify(err, tx.Conn().IsClosed())
	}

	// Crash point: everything is written, nothing is committed. It never happened.
	if err := tx.Commit(ctx); err != nil {
		// Without a reply the outcome is open. If it did commit, the inbox knows the events.
		var pg *pgconn.PgError
		return classify(fmt.Errorf("commit: %w", err), !errors.As(err, &pg))
	}
	committed = true

	return nil
}

// handle calls the handler. A panic counts as an error of the event, so that one bad event does not
// take the other partitions down.
func (c *Consumer) handle(ctx context.Context, tx pgx.Tx, events []Event) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.Log.ErrorContext(ctx, "handler panicked", "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
	}()

	return c.Handle(ctx, tx, events)
}

// maxRaces is how often a transaction that loses races is tried before its events are blamed.
const maxRaces = 3

// lostRace reports whether another transaction was in the way: that of a member about to lose the
// partition, for example.
func lostRace(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "55P03")
}

// errTooLong means that a transaction did not end in time, nor by any of the session's limits.
var errTooLong = errors.New("it took longer")

// timedOut reports whether err is a timeout, which may be no fault of the event: another
// transaction holds its rows, such as a COMMIT waiting for its standby, or the database is slow.
func timedOut(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return errors.Is(err, errTooLong)
	}

	switch pg.Code {
	case "57014", "55P03", "25P03", "25P04": // statement, lock, idle and transaction timeout
		return true
	}
	return errors.Is(err, errTooLong)
}

// pause returns how long to wait after that many failures in a row: doubled each time up to TryFor,
// with jitter. The pauses between the first Tries attempts add up to TryFor at most.
func (c *Consumer) pause(failures int) time.Duration {
	doublings := min(c.Tries-1, 20)
	shortest := c.TryFor / time.Duration(max(1, 1<<doublings-1))

	d := min(c.TryFor, shortest<<min(failures-1, doublings))
	return d/2 + rand.N(d/2+1)
}

// outageError means that the database was unusable: any other event would have failed the same way.
type outageError struct{ err error }

func (e *outageError) Error() string { return e.err.Error() }
func (e *outageError) Unwrap() error { return e.err }

// waited turns a timeout of the inbox's own statement for one event into an outage. Such a
// statement takes a moment unless another transaction holds the row: that of a member that
// vanished, or a COMMIT waiting for its standby, for as long as the standby is away. With many
// events their number may be the cause, so they are done one by one instead.
func waited(err error, events int) error {
	var pg *pgconn.PgError
	if events == 1 && errors.As(err, &pg) && (pg.Code == "57014" || pg.Code == "55P03") {
		return &outageError{err}
	}
	return err
}

// classify separates outages from failures of an event. lost is whether the connection is lost.
func classify(err error, lost bool) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch class := pg.Code[:min(2, len(pg.Code))]; {
		// A statement or transaction that takes too long is the event's failure, although the last
		// two cost the connection.
		case pg.Code == "57014", pg.Code == "25P03", pg.Code == "25P04":
			lost = false
		// Connection, resources, shutdown or recovery, system.
		case class == "08", class == "53", class == "57", class == "58":
			lost = true
		case pg.Code == "25006": // a primary that was demoted
			lost = true
		}
	}

	if lost {
		return &outageError{err}
	}
	return err
}

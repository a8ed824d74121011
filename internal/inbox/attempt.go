package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// attempt does events in one transaction: all of them or none. Those that were done before are skipped.
func (s *session) attempt(ctx context.Context, events []Event) (err error) {
	start := time.Now()
	handling := ctx
	for _, e := range events {
		spanned, end := s.Trace(ctx, e)
		defer func() { end(err) }()
		if len(events) == 1 {
			handling = spanned
		}
	}
	fresh, err := s.transact(handling, events)
	for n := 1; lostRace(err) && n < maxRaces; n++ {
		fresh, err = s.transact(handling, events)
	}
	if err != nil {
		return err
	}
	took := time.Since(start)
	for i := range events {
		if i < fresh {
			s.OnEvent(Processed, took)
		} else {
			s.OnEvent(Duplicate, took)
		}
	}
	return nil
}

// transact returns how many of the events took effect now.
func (s *session) transact(ctx context.Context, events []Event) (fresh int, err error) {
	beginning, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	tx, err := s.DB.BeginTx(beginning, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return 0, &outageError{fmt.Errorf("begin: %w", err)}
	}
	// What is in hand is settled, although ctx ends.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer cancel()
	committed := false
	defer func() {
		if !committed {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = tx.Rollback(ctx) // the connection is closed when it fails, which rolls back as well
		}
	}()
	ids := make([]uuid.UUID, len(events))
	for i, e := range events {
		ids[i] = e.ID
	}
	first, err := OnceEach(ctx, tx, s.Name, ids)
	if err != nil {
		return 0, classify(err, tx.Conn().IsClosed())
	}
	var news []Event
	for i, e := range events {
		if first[i] {
			news = append(news, e)
		}
	}
	if len(news) > 0 {
		if err := s.handle(ctx, tx, news); err != nil {
			return 0, classify(fmt.Errorf("handle: %w", err), tx.Conn().IsClosed())
		}
	}
	// Crash point: everything is written, nothing committed. It never happened.
	if err := tx.Commit(ctx); err != nil {
		var pg *pgconn.PgError
		return 0, classify(fmt.Errorf("commit: %w", err), !errors.As(err, &pg)) // no answer: if it was done, the inbox knows
	}
	committed = true
	return len(news), nil
}

// handle calls the handler. One that panics fails like one that returns an error: the others are not to suffer for it.
func (s *session) handle(ctx context.Context, tx pgx.Tx, events []Event) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.Log.ErrorContext(ctx, "handler panicked", "panic", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return s.Handle(ctx, tx, events)
}

// maxRaces is how often a transaction is tried that lost a race before its events are blamed.
const maxRaces = 3

// lostRace says that another transaction was in the way: a member that is about to lose the partition, for example.
func lostRace(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01" || pg.Code == "55P03")
}

// outageError says that the database could not be worked with: any other event would have met the same.
type outageError struct{ err error }

func (e *outageError) Error() string { return e.err.Error() }
func (e *outageError) Unwrap() error { return e.err }

// classify tells an outage from what is wrong with an event. lost: the connection is.
func classify(err error, lost bool) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && !lost {
		switch class := pg.Code[:min(2, len(pg.Code))]; {
		case class == "08", class == "53", class == "58": // connection, resources, system
			lost = true
		case class == "57": // shutdown, recovery; but a statement that takes too long is the event's
			lost = pg.Code != "57014"
		case pg.Code == "25006": // a primary that was demoted
			lost = true
		}
	}
	if lost {
		return &outageError{err}
	}
	return err
}

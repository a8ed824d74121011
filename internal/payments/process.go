package payments

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/outbox"
)

// Processor answers requests. Whatever crashes, repeats or races, each key takes effect once, with
// its event.
type Processor struct {
	DB        idempotency.Beginner
	Retention time.Duration                      // how long an answer is promised to be kept
	Render    func(Outcome) idempotency.Response // makes the bytes that are stored and sent
	OnClaim   func(time.Duration)                // called with how long each claim took; may be nil
	OnHeld    func(id uuid.UUID)                 // called when an account or payment is found held; may be nil

	// OnStep is called at the beginning of each of the four verbs of a transaction. It returns the
	// verb's context, and what to call at the end. May be nil.
	OnStep func(ctx context.Context, verb string) (context.Context, func(error))

	held   held
	claims claims
}

// Process answers rs in one transaction and commits it: one answer per request, in order. What it
// returned may be sent. An error means that nothing was done, except for
// idempotency.ErrOutcomeUnknown. A request is Busy when another session keeps one of its accounts
// locked: see Await.
func (p *Processor) Process(ctx context.Context, rs []Request) ([]idempotency.Answer, error) {
	attempt := func(ctx context.Context, tx pgx.Tx) ([]idempotency.Answer, error) {
		return p.process(ctx, tx, rs)
	}

	for dayMade := false; ; {
		answers, err := idempotency.CommitOnce(ctx, p.DB, attempt)

		// From the second case on nothing was done: the transaction is rolled back and holds no
		// lock.
		var blocked *blockedError
		switch {
		case err == nil, errors.Is(err, idempotency.ErrOutcomeUnknown):
			return answers, err
		case !dayMade && (idempotency.MissingDay(err) || outbox.MissingDay(err)):
			dayMade = true
			err = p.makeDay(ctx)
		case errors.As(err, &blocked): // run again without the requests that need that account
			err = p.hold(ctx, blocked)
		}
		if err != nil {
			return nil, err
		}
	}
}

// makeDay makes today's partitions, each table's in a transaction of its own.
func (p *Processor) makeDay(ctx context.Context) error {
	if _, err := idempotency.MakePartitions(ctx, p.DB); err != nil {
		return err
	}
	_, err := outbox.MakePartitions(ctx, p.DB)
	return err
}

// process is the heart: one transaction claims the keys, executes what is new, appends the events
// and stores the responses. No client may see anything of it before it commits.
func (p *Processor) process(
	ctx context.Context, tx pgx.Tx, rs []Request,
) ([]idempotency.Answer, error) {
	keys := keysOf(rs)
	answers, err := p.claim(ctx, tx, keys)
	if err != nil {
		return nil, err
	}

	// Only new requests go on, and of those only the ones whose accounts are not held.
	fresh, places := onlyNew(rs, answers)
	fresh, places, err = p.setApart(ctx, tx, fresh, places, answers)
	if err != nil || len(fresh) == 0 {
		return answers, err
	}

	outcomes, err := p.execute(ctx, tx, fresh)
	if err != nil {
		return nil, err
	}

	if err := p.append(ctx, tx, eventsOf(fresh, outcomes)); err != nil {
		return nil, err
	}

	for i, o := range outcomes {
		if o.moving {
			answers[places[i]] = idempotency.Answer{State: idempotency.Moving}
			continue
		}
		answers[places[i]].Response = p.Render(o)
	}
	return answers, p.store(ctx, tx, keys, answers)
}

func keysOf(rs []Request) []idempotency.Request {
	keys := make([]idempotency.Request, len(rs))
	for i, r := range rs {
		keys[i] = r.Request
	}
	return keys
}

// onlyNew returns the requests to execute, dated by the claim, and their places in rs.
func onlyNew(rs []Request, answers []idempotency.Answer) (fresh []Request, places []int) {
	for i, a := range answers {
		if a.State == idempotency.New {
			r := rs[i]
			r.At = a.Date.UTC().Truncate(time.Millisecond) // as precise as a UUIDv7, so that both agree
			fresh, places = append(fresh, r), append(places, i)
		}
	}
	return fresh, places
}

package psp

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/payments"
)

// Worker executes the operations that are due.
type Worker struct {
	// As payments.Processor has them.
	Claim  func(ctx context.Context, limit int, lease time.Duration) ([]payments.Operation, error)
	Record func(ctx context.Context, results []payments.Result) ([]payments.Recorded, error)

	Provider     *Breaker
	KeyRetention time.Duration // for how long the provider remembers a key
	Concurrency  int           // calls at a time
	Interval     time.Duration // how often to look for operations when none was due

	Log     *slog.Logger
	Observe Observer
}

// Observer has a function for each thing worth counting. All of them are required.
type Observer struct {
	FirstCall func(waited time.Duration)        // of an operation
	InFlight  func(operations int)              // claimed and not recorded yet
	Conflict  func(kind payments.OperationKind) // the two sides' books differ

	// Recorded is called after a result was recorded, with the state that it has.
	Recorded func(
		kind payments.OperationKind, state payments.OperationState, r payments.Recorded,
	)

	// Begin returns the context of an operation's calls and log lines. Call is called before each
	// call: charge, refund or find. It returns the context of the call, and what to call after it.
	Begin func(ctx context.Context, op payments.Operation) context.Context
	Call  func(ctx context.Context, call string, op payments.Operation) (context.Context, func(Outcome))
}

const (
	// lease is for how long an operation is ours: for its calls, at most two, and for recording
	// what they said. A worker that dies delays its operations by this.
	lease     = 20 * time.Second
	callsTime = 15 * time.Second

	lockedTime = 5 * time.Second

	// A server that has stopped without closing its connections is given up.
	claimTimeout = 10 * time.Second
)

// group records results.
type group = groupcommit.Group[payments.Result, payments.Recorded]

// Run executes operations until ctx ends and what it has claimed is recorded. Nothing that fails
// ends it. Any number of workers may run.
func (w *Worker) Run(ctx context.Context) error {
	records := groupcommit.New(w.Record, groupcommit.Options{
		Queue: w.Concurrency, Split: payments.OneIsToBlame,
	})

	// Results are recorded to the end, beyond ctx.
	last, end := context.WithCancel(context.WithoutCancel(ctx))
	var committers sync.WaitGroup
	committers.Go(func() { _ = records.Run(last) }) // it returns nil

	w.work(ctx, records)
	end()
	committers.Wait()
	return nil
}

// work keeps as many operations in flight as there are slots, and owns the count of them.
func (w *Worker) work(ctx context.Context, records *group) {
	done := make(chan struct{}, w.Concurrency)
	inFlight, failures := 0, 0

	for ctx.Err() == nil {
		claimed := time.Now()
		ops, err := w.claim(ctx, w.Concurrency-inFlight)
		for _, op := range ops {
			inFlight++
			go func() {
				w.execute(context.WithoutCancel(ctx), records, op, claimed)
				done <- struct{}{}
			}()
		}
		w.Observe.InFlight(inFlight)

		pause := w.Interval
		failures++
		if err == nil {
			failures = 0
		} else {
			w.Log.WarnContext(ctx, "operations not claimed, trying again",
				"failures", failures, "error", err)
			pause = rand.N(min(5*time.Second, 50*time.Millisecond<<min(failures, 10)))
		}

		// With a slot to spare nothing more was due. Without one, more may be: go on with the first
		// that is free.
		if inFlight < w.Concurrency {
			sleep(ctx, pause)
		} else {
			<-done
			inFlight--
		}
		inFlight -= drain(done)
	}

	for ; inFlight > 0; inFlight-- {
		<-done
	}
	w.Observe.InFlight(0)
}

// claim claims up to slots operations, and none while the breaker is open: they stay as they are.
func (w *Worker) claim(ctx context.Context, slots int) ([]payments.Operation, error) {
	room := w.Provider.Room(slots)
	if room == 0 {
		return nil, nil
	}

	// Not cancelled by ctx: what is claimed then would wait for the end of its lease.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	return w.Claim(ctx, room, lease)
}

// drain returns how many are done by now.
func drain(done <-chan struct{}) (n int) {
	for {
		select {
		case <-done:
			n++
		default:
			return n
		}
	}
}

// execute calls the provider and records what it said. The claim is committed and no transaction is
// open.
func (w *Worker) execute(
	ctx context.Context, records *group, op payments.Operation, claimed time.Time,
) {
	ctx = w.Observe.Begin(ctx, op)

	// The process may have been frozen since, even for longer than the provider remembers the key.
	// By both clocks: a suspended machine stops the monotonic one.
	if time.Since(claimed) > lease || time.Now().Round(0).Sub(claimed.Round(0)) > lease {
		w.Log.WarnContext(ctx, "claimed too long ago, the operation comes due again",
			"operation_id", op.ID, "payment_id", op.PaymentID)
		return
	}
	ctx, cancel := context.WithDeadline(ctx, claimed.Add(lease))
	defer cancel()

	// Crash point A, claimed but not called: the operation is unknown. It comes due when the lease
	// ends, and the first call is the one that counts.
	if op.Tries == 1 {
		w.Observe.FirstCall(max(0, time.Since(op.CreatedAt))) // two clocks
	}
	r, outcome := w.calls(ctx, op)

	// Crash point B, executed but not recorded: the operation comes due when the lease ends. The
	// same key gets the same answer. Or the provider's webhook records it before that.
	recorded, err := w.record(ctx, records, r)
	if err != nil {
		w.Log.WarnContext(ctx, "result not recorded, the operation comes due again",
			"operation_id", op.ID, "payment_id", op.PaymentID, "outcome", outcome, "error", err)
		return
	}

	w.Observe.Recorded(op.Kind, r.State, recorded)
	w.report(ctx, op, r, outcome, recorded)
}

func (w *Worker) calls(ctx context.Context, op payments.Operation) (payments.Result, Outcome) {
	ctx, cancel := context.WithTimeout(ctx, callsTime)
	defer cancel()

	c := caller{w.Provider, w.KeyRetention, w.Observe.Call}
	return c.call(ctx, op)
}

var errLocked = errors.New("another session keeps a row of the payment locked")

// record tries for as long as the lease lasts. For a row that is locked it does so for lockedTime
// only: the slot is worth more.
func (w *Worker) record(
	ctx context.Context, records *group, r payments.Result,
) (payments.Recorded, error) {
	began := time.Now()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		recorded, err := records.Do(ctx, r)
		switch {
		case err == nil && recorded != payments.Locked:
			return recorded, nil
		case err == nil && time.Since(began) > lockedTime:
			return recorded, errLocked
		}

		// The database is away, or a standby takes over.
		sleep(ctx, pause/2+rand.N(pause))
		if ctx.Err() != nil {
			return recorded, errors.Join(err, ctx.Err())
		}
	}
}

// report logs what needs a person.
func (w *Worker) report(
	ctx context.Context, op payments.Operation,
	r payments.Result, outcome Outcome, recorded payments.Recorded,
) {
	log := w.Log.With("operation_id", op.ID, "payment_id", op.PaymentID, "kind", op.Kind,
		"tries", op.Tries, "outcome", outcome, "detail", r.Error)

	switch {
	case outcome == Conflict, outcome == KeyReused, recorded == payments.Conflict:
		w.Observe.Conflict(op.Kind)
		log.ErrorContext(ctx, "the provider's books and ours differ: an operator must look")
	case recorded == payments.Unbookable, recorded == payments.NoOperation:
		log.ErrorContext(ctx, "the books cannot take a result: an operator must look")
	case r.AskOperator:
		log.ErrorContext(ctx, "the result can no longer be found out: an operator must look")
	case outcome == Unauthorized:
		log.ErrorContext(ctx, "the provider refuses our credentials: PSP_API_KEY may be wrong")
	case r.State == payments.Unknown:
		log.DebugContext(ctx, "the result is not known yet", "retry_after", r.RetryAfter)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

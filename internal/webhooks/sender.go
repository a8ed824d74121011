package webhooks

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/outbox"
)

// Sender sends deliveries that are due. Set the fields, then call Run once. Any number of senders
// share the work.
type Sender struct {
	DB *pgxpool.Pool

	// Allow are the addresses that may be called although they are not public, by http as well.
	Allow []netip.Prefix

	// PerEndpoint is how many calls of an endpoint are in flight at most; default 32. Total is that
	// of all endpoints together; default 1,000.
	PerEndpoint int
	Total       int

	Interval time.Duration   // how often to look when nothing was due; default 50 ms
	Timeout  time.Duration   // of a call, its connection and answer included; default 10 s
	Schedule []time.Duration // nil: the package's
	Resolver *net.Resolver   // nil: the system's
	Log      *slog.Logger    // nil: slog.Default()

	// OnCall is called before each call. It returns the context of the call, and what to call after
	// it: delivered, or failed, to be tried again or not; status is zero without an answer. OnEnded
	// is called with the number of deliveries that a transaction gave the state. Both may be nil.
	OnCall  func(context.Context, Call) (context.Context, func(outcome string, status int))
	OnEnded func(state DeliveryState, count int)

	lanes  *lanes
	client *http.Client
}

// Call is a call of an endpoint.
type Call struct {
	EventID     string
	URL         string
	Tries       int    // before this one
	Traceparent string // of the event; empty: it was not traced
}

const (
	// minGap is the least time between two claims: with fewer of them each takes more.
	minGap = 5 * time.Millisecond

	// maxResults is how many results a transaction records.
	maxResults = 500

	statementTimeout = 10 * time.Second // a connection may have died unnoticed
	maxBackoff       = 5 * time.Second
)

// lease is how long a claim lasts: a call, and the time until its result is recorded.
func (s *Sender) lease() time.Duration { return 3 * s.Timeout }

// Run sends until ctx ends. Calls in flight then finish, and their results are recorded. Nothing that
// fails ends it.
func (s *Sender) Run(ctx context.Context) error {
	s.setDefaults()
	defer s.client.CloseIdleConnections()

	results := make(chan result, maxResults)
	var recording, calls sync.WaitGroup
	recording.Go(func() { s.recordAll(context.WithoutCancel(ctx), results) })

	failures := 0
	for ctx.Err() == nil {
		claimed, blocked, err := s.claimOnce(ctx)
		for _, d := range claimed {
			s.lanes.begin(d.endpoint)
			calls.Go(func() {
				if s.late(d) {
					s.Log.WarnContext(ctx, "claimed too long ago, the webhook comes due again",
						"event_id", d.event)
					s.lanes.end(d.endpoint, true) // the endpoint did nothing wrong
					return
				}

				r := s.send(d)
				results <- r
				// Only now: while no result can be recorded, no more calls are made.
				s.lanes.end(d.endpoint, r.status != 0)
			})
		}

		switch {
		case err != nil:
			failures++
			s.Log.WarnContext(ctx, "webhooks not claimed, trying again", "failures", failures, "error", err)
			sleep(ctx, rand.N(min(maxBackoff, 50*time.Millisecond<<min(failures, 10))))
			continue
		case len(claimed)+blocked > 0:
			sleep(ctx, minGap)
		default:
			sleep(ctx, s.Interval)
		}
		failures = 0
	}

	calls.Wait()
	close(results)
	recording.Wait()
	return nil
}

func (s *Sender) setDefaults() {
	s.PerEndpoint = cmp.Or(s.PerEndpoint, 32)
	s.Total = cmp.Or(s.Total, 1000)
	s.Interval = cmp.Or(s.Interval, 50*time.Millisecond)
	s.Timeout = cmp.Or(s.Timeout, 10*time.Second)
	if s.Schedule == nil {
		s.Schedule = Schedule
	}
	if s.Log == nil {
		s.Log = slog.Default()
	}
	if s.OnCall == nil {
		s.OnCall = func(ctx context.Context, _ Call) (context.Context, func(string, int)) {
			return ctx, func(string, int) {}
		}
	}
	if s.OnEnded == nil {
		s.OnEnded = func(DeliveryState, int) {}
	}

	s.lanes = newLanes(s.PerEndpoint, s.Total)
	s.client = newClient(s.Allow, s.Resolver, s.PerEndpoint)
}

// claimOnce finishes what it began when ctx ends: deliveries that are claimed and not sent would wait
// for the lease.
func (s *Sender) claimOnce(ctx context.Context) (claimed []*delivery, blocked int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	return s.claim(ctx)
}

// late reports whether the lease may end during the call. The process may have been frozen since the
// claim, and another sender, here or where the tenant has moved, may have made the call and later
// ones. By both clocks: a suspended machine stops the monotonic one.
func (s *Sender) late(d *delivery) bool {
	return min(time.Until(d.until), time.Until(d.until.Round(0))) < s.Timeout
}

// send makes the call.
func (s *Sender) send(d *delivery) result {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	ctx, end := s.OnCall(ctx, Call{
		EventID: d.event, URL: d.url, Tries: d.tries, Traceparent: d.trace,
	})

	// Crash point: claimed, not called. The lease ends, and another sender makes the call.
	status, err := call(ctx, s.client, d)
	// Crash point: called, not recorded. The call is made again, with the same webhook-id.

	r := result{delivery: d, status: status}
	if err != nil || status < 200 || status > 299 {
		r.reason, r.pause = reason(status, err), pause(s.Schedule, d.tries)
	}

	outcome := "delivered"
	if !r.delivered() {
		outcome = "failed"
	}
	end(outcome, status)
	return r
}

// recordAll records results until there are no more, as many at a time as have come in.
func (s *Sender) recordAll(ctx context.Context, results <-chan result) {
	batch := make([]result, 0, maxResults)
	for first := range results {
		batch = append(batch[:0], first)
		for more := true; more && len(batch) < maxResults; {
			select {
			case r, open := <-results:
				if more = open; open {
					batch = append(batch, r)
				}
			default:
				more = false
			}
		}
		s.recordBatch(ctx, batch)
	}
}

// recordBatch tries until the results are recorded or their claims have ended: then the calls are
// made again.
func (s *Sender) recordBatch(ctx context.Context, batch []result) {
	until := batch[0].until
	for failures := 1; ; failures++ {
		states, err := s.recordOnce(ctx, batch)
		if err == nil {
			for state, n := range states {
				s.OnEnded(state, n)
			}
			return
		}

		s.Log.WarnContext(ctx, "results of webhooks not recorded, trying again",
			"results", len(batch), "failures", failures, "error", err)
		if time.Now().After(until) {
			s.Log.WarnContext(ctx, "results of webhooks are given up, the calls are made again",
				"results", len(batch))
			return
		}
		if outbox.MissingDay(err) {
			if _, err := outbox.MakePartitions(ctx, s.DB); err != nil {
				s.Log.WarnContext(ctx, "no partition of the outbox for today", "error", err)
			}
		}
		sleep(ctx, rand.N(min(maxBackoff, 50*time.Millisecond<<min(failures, 10))))
	}
}

func (s *Sender) recordOnce(ctx context.Context, batch []result) (map[DeliveryState]int, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return s.record(ctx, batch)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

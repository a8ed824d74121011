// Package stage is what happens on the demo's page: it reads the state of the running service from its
// tables, topics and metrics, and plays faults on its processes.
package stage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/cmd/demo/local"
	"github.com/oncepay/oncepay/cmd/demo/page"
	"github.com/oncepay/oncepay/internal/client"
	"github.com/oncepay/oncepay/internal/traffic"
)

// Options are what a Stage plays on.
type Options struct {
	Service  *local.Service
	Timeline *page.Timeline
	Begun    time.Time
	Visitor  traffic.Seed // pays from the page
	InFlight func() int64 // requests of the demo's own clients

	// Received returns the place of an event among the webhooks that have come.
	Received func(event string) (place int, came bool)
}

// Stage is one run. The caller calls End before it counts, and Close.
type Stage struct {
	Options
	db      *pgxpool.Pool
	visitor *client.Client

	living context.Context // ends with Close
	die    context.CancelFunc
	work   sync.WaitGroup

	metrics  metrics
	outbox   outboxView
	topic    topic
	checks   checks
	shown    shown
	held     held
	last     lastPayment
	asked    asked
	under    under
	touring  sync.Mutex
	ending   context.Context // ends with End
	end      context.CancelFunc
	restarts sync.WaitGroup

	mu    sync.Mutex // for the field below
	again int        // how often a leader was interrupted: it may have two batches repeated
}

// New connects to what runs.
func New(ctx context.Context, o Options) (*Stage, error) {
	config, err := pgxpool.ParseConfig(o.Service.Owner())
	if err != nil {
		return nil, fmt.Errorf("set the stage: %w", err)
	}
	config.MaxConns = 6
	config.ConnConfig.RuntimeParams["application_name"] = "demo page"
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("set the stage: %w", err)
	}

	s := &Stage{
		Options: o, db: db,
		visitor: &client.Client{URL: o.Service.URL(), Token: o.Visitor.Token},
	}
	s.living, s.die = context.WithCancel(context.WithoutCancel(ctx))
	s.ending, s.end = context.WithCancel(s.living)
	return s, nil
}

// Page is what the server of the page needs.
func (s *Stage) Page() *page.Stage {
	return &page.Stage{State: s.State, Act: s.Act, Tour: tour(), Play: s.Play}
}

// End ends every fault that the visitor has left behind, and returns when everything runs again. No
// action can be taken afterwards.
func (s *Stage) End(ctx context.Context) {
	defer context.AfterFunc(ctx, s.die)() // a second Ctrl-C does not wait
	s.endActions()
	s.Service.Heal()
	if err := s.held.close(ctx); err != nil {
		s.Timeline.Add(page.Wrong, "the open transaction could not be committed: %v", err)
	}
	s.restarts.Wait()
}

// Interruptions returns how often a leader was killed, frozen or cut off from its broker. Each may have
// had two batches repeated.
func (s *Stage) Interruptions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

func (s *Stage) interrupted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.again++
}

// Close stops everything that New and the state have started.
func (s *Stage) Close() {
	s.die()
	s.endActions()
	s.restarts.Wait()
	s.work.Wait()
	s.topic.close()
	s.checks.close()
	s.db.Close()
}

func (s *Stage) elapsed() float64 { return time.Since(s.Begun).Seconds() }

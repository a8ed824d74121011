package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/telemetry"
)

// drainTimeout is how long requests in flight may take after a signal: longer than any answer
// takes, shorter than the 30 s that supervisors wait before they kill.
const drainTimeout = 25 * time.Second

// service is what runs while the API answers.
type service struct {
	server   *http.Server
	listener net.Listener
	admin    *telemetry.Admin
	profiles *telemetry.Pprof
	commit   func(context.Context) error
	record   func(context.Context) error
	upkeep   func(context.Context) error
	drain    func() // called before the listener closes
}

// run answers until ctx ends, drains, closes the listener and returns when the requests in flight
// are answered. Committers, upkeep and metrics run to the very end: answers wait for the
// committers, and metrics should show the drain.
func (s service) run(ctx context.Context) error {
	last, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.admin.Run(last) })
	g.Go(func() error { return s.profiles.Run(last) })
	g.Go(func() error { return s.commit(last) })
	g.Go(func() error { return s.record(last) })
	g.Go(func() error { return s.upkeep(last) })

	g.Go(func() error {
		if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})

	g.Go(func() error {
		<-ctx.Done()
		defer end()
		s.drain()

		// Serve returns at once: Shutdown is what waits for the requests in flight.
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := s.server.Shutdown(grace); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		return nil
	})
	return g.Wait()
}

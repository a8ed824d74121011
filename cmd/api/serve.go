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

// serve answers until ctx ends, calls drain, closes the listener and returns when what was in
// flight is answered. Committers, upkeep and metrics go on to the very end: the former are what the
// answers wait for, and a drain is worth watching.
func serve(ctx context.Context, server *http.Server, listener net.Listener, admin *telemetry.Admin, commit, upkeep func(context.Context) error, drain func()) error {
	last, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return admin.Run(last) })
	g.Go(func() error { return commit(last) })
	g.Go(func() error { return upkeep(last) })
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		defer end()
		drain()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := server.Shutdown(grace); err != nil { // Serve returns at once: the wait is here
			return fmt.Errorf("drain: %w", err)
		}
		return nil
	})
	return g.Wait()
}

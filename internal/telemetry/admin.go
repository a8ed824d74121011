package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Admin is the private listener: /metrics, and the probes of a program that has no other listener. It
// does not authenticate.
type Admin struct {
	// Detail, if set before Run, is what /readyz says beside ok: of what is worth knowing and would
	// not get better by sending nothing here. Empty: nothing.
	Detail func() string

	listener net.Listener
	server   *http.Server
}

// ListenAdmin binds the address, so that one in use is an error at start. It serves nothing before
// Run. If ready is not nil it also serves /livez, 200 while the process answers, and /readyz, 503
// with the reason while ready returns an error.
func ListenAdmin(
	addr string, metrics prometheus.Gatherer, ready func(context.Context) error,
) (*Admin, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("open the admin listener (ADMIN_ADDR): %w", err)
	}

	mux := http.NewServeMux()
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	admin := &Admin{listener: listener, server: server}

	// A failing collector must not hide the others. Only OpenMetrics has room for exemplars.
	o := promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true,
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, o))

	if ready != nil {
		mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "ok")
		})
		mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
			if err := ready(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
			if admin.Detail == nil {
				return
			}
			if detail := admin.Detail(); detail != "" {
				fmt.Fprintln(w, detail)
			}
		})
	}
	return admin, nil
}

// Addr returns the bound address: with the real port even if 0 was asked for.
func (a *Admin) Addr() string { return a.listener.Addr().String() }

// Run serves until ctx ends and then returns nil.
func (a *Admin) Run(ctx context.Context) error { return serve(ctx, a.server, a.listener, "metrics") }

// serve serves until ctx ends. What is being answered then has a second to finish.
func serve(ctx context.Context, server *http.Server, listener net.Listener, what string) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", what, err)
	case <-ctx.Done():
	}

	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if server.Shutdown(grace) != nil {
		server.Close()
	}

	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", what, err)
	}
	return nil
}

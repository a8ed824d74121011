package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Admin is the private listener: /metrics and /debug/pprof/, and the probes of a program that has
// no other listener. It knows no authentication: whoever reaches it may profile the process.
type Admin struct {
	listener net.Listener
	server   *http.Server
}

// ListenAdmin binds the address, so that one in use is an error at start, and serves nothing before
// Run. With ready not nil there are /livez, 200 as long as the process answers, and /readyz, 503
// with the reason while ready returns one.
func ListenAdmin(addr string, metrics prometheus.Gatherer, ready func(context.Context) error) (*Admin, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("open the admin listener (ADMIN_ADDR): %w", err)
	}
	mux := http.NewServeMux()
	// One collector in trouble must not hide the others from whoever is looking for the trouble.
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	if ready != nil {
		mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
		mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
			if err := ready(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	// No write timeout: a CPU profile takes 30 s and more.
	return &Admin{listener, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}

// Addr returns the bound address: the port in it is real even if 0 was asked for.
func (a *Admin) Addr() string { return a.listener.Addr().String() }

// Run serves until ctx ends and then returns nil. A scrape in flight may finish, a running profile
// is cut off.
func (a *Admin) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- a.server.Serve(a.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve metrics: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if a.server.Shutdown(grace) != nil {
		a.server.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

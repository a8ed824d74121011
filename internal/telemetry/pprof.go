package telemetry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// Pprof is the listener of /debug/pprof/ and nothing else: not the one of the metrics, so that what
// may scrape cannot profile. It does not authenticate.
type Pprof struct {
	listener net.Listener // nil: there is none
	server   *http.Server
}

// ListenPprof binds the address, so that one in use is an error at start. It serves nothing before
// Run. Without an address there is no listener.
func ListenPprof(addr string) (*Pprof, error) {
	if addr == "" {
		return &Pprof{}, nil
	}

	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("open the profiling listener (PPROF_ADDR): %w", err)
	}

	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)

	// No write timeout: a CPU profile takes 30 s and more.
	return &Pprof{listener, &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}, nil
}

// Addr returns the bound address, or "" if there is none.
func (p *Pprof) Addr() string {
	if p.listener == nil {
		return ""
	}
	return p.listener.Addr().String()
}

// Run serves until ctx ends and then returns nil. A profile that is being taken is cut off.
func (p *Pprof) Run(ctx context.Context) error {
	if p.listener == nil {
		return nil
	}
	return serve(ctx, p.server, p.listener, "profiles")
}

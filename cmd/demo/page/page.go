// Package page serves the page on which a visitor sees the demo run and breaks it: its assets, what
// happens as server-sent events, and the actions behind its buttons.
//
// It is for the visitor of this machine alone. It listens on a loopback address, answers requests
// for that address only, and takes none that another site's page sends, so that no web site can press
// the buttons.
package page

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

//go:embed assets
var embedded embed.FS

// Stage is what the page shows and acts on.
type Stage struct {
	// State is called every second, and with each line of the timeline, while there are listeners.
	State func(context.Context) State

	// Act does what a button says, and returns what came of it.
	Act func(ctx context.Context, action string) (string, error)

	Tour []Step
	// Play does a step of the tour, from 1, and returns when it is proved.
	Play func(ctx context.Context, step int) (Proof, error)
}

// Step is one of the tour.
type Step struct {
	Title  string `json:"title"`
	Text   string `json:"text"`
	Action string `json:"action"` // label of its button
	File   string `json:"file"`   // where the promise is kept
}

// Proof is what a step of the tour has shown.
type Proof struct {
	OK      bool    `json:"ok"`
	Proved  string  `json:"proved"`
	File    string  `json:"file"`
	Seconds float64 `json:"seconds"`
}

// ErrUnknown means that there is no such action or step.
var ErrUnknown = errors.New("there is no such action")

// Refused is why an action cannot be done now: what it is about is frozen or down already.
type Refused string

func (r Refused) Error() string { return string(r) }

// Server serves the page.
type Server struct {
	*Timeline
	begun    time.Time
	listener net.Listener
	server   *http.Server
	stage    atomic.Pointer[Stage]
	hub      hub
	ended    context.CancelFunc
}

// Listen serves the page at a loopback address, from now on and until Close. Before SetStage it shows
// that everything is starting.
func Listen(address string, begun time.Time) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve the page: %w", err)
	}
	if at := l.Addr().(*net.TCPAddr); !at.IP.IsLoopback() {
		_ = l.Close()
		return nil, fmt.Errorf("serve the page: %s can be reached from other machines", at)
	}

	ctx, end := context.WithCancel(context.Background())
	s := &Server{Timeline: newTimeline(begun), begun: begun, listener: l, ended: end}
	s.server = &http.Server{
		Handler: s.guard(s.routes()), ReadHeaderTimeout: 5 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	go func() { _ = s.server.Serve(l) }() // Close ends it
	return s, nil
}

// URL is where the page is.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + "/" }

// SetStage sets what the page shows; nil: nothing can be done any more. When it returns, no state of
// the stage before is being made.
func (s *Server) SetStage(stage *Stage) {
	s.hub.turn.Lock()
	defer s.hub.turn.Unlock()
	s.stage.Store(stage)
}

// Close ends all connections, actions under way included.
func (s *Server) Close() {
	s.ended()
	_ = s.server.Close()
	s.hub.wait()
}

func (s *Server) routes() *http.ServeMux {
	assets, err := fs.Sub(embedded, "assets")
	if err != nil {
		panic(err) // the folder is embedded above
	}

	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(assets))
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("POST /actions/{action...}", s.act)
	mux.HandleFunc("GET /tour", s.tour)
	mux.HandleFunc("POST /tour/{step}", s.play)
	return mux
}

// state is that of the stage, or a blank one.
func (s *Server) state(ctx context.Context) State {
	if stage := s.stage.Load(); stage != nil {
		return stage.State(ctx)
	}
	return Blank(time.Since(s.begun).Seconds())
}

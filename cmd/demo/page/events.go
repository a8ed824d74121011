package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// stateEvery is how often the state is sent when nothing happens. With each line of the timeline comes
// one at once.
const stateEvery = time.Second

// events sends the timeline and the state until the browser leaves.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	states, leave := s.hub.join(r.Context(), s)
	defer leave()

	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(event string, data []byte) bool {
		_, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data)
		return err == nil && out.Flush() == nil
	}

	for seq := 0; ; {
		lines, more := s.after(seq)
		for _, l := range lines {
			if !send("timeline", mustJSON(l)) {
				return
			}
			seq = l.Seq
		}

		select {
		case state := <-states:
			if !send("state", state) {
				return
			}
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

// hub makes a state once for all listeners, and none without one.
type hub struct {
	mu        sync.Mutex
	listeners map[chan []byte]bool
	stop      context.CancelFunc
	running   sync.WaitGroup

	turn sync.Mutex // held by who makes a state: the loop before may not have ended yet
}

// join adds a listener. The first one starts the work.
func (h *hub) join(ctx context.Context, s *Server) (states <-chan []byte, leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()

	mine := make(chan []byte, 1)
	if len(h.listeners) == 0 {
		h.listeners = map[chan []byte]bool{}
		var working context.Context
		working, h.stop = context.WithCancel(context.WithoutCancel(ctx))
		h.running.Go(func() { h.work(working, s) })
	}
	h.listeners[mine] = true

	return mine, func() { h.leave(mine) }
}

// leave removes a listener. The last one stops the work.
func (h *hub) leave(mine chan []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()

	delete(h.listeners, mine)
	if len(h.listeners) == 0 {
		h.stop()
	}
}

func (h *hub) work(ctx context.Context, s *Server) {
	tick := time.NewTicker(stateEvery)
	defer tick.Stop()

	for ctx.Err() == nil {
		h.turn.Lock()
		happened := s.next() // what happens meanwhile may not be in this state
		made := mustJSON(s.state(ctx))
		h.turn.Unlock()
		h.send(made)

		select {
		case <-tick.C:
		case <-happened:
		case <-ctx.Done():
		}
	}
}

// send gives everybody the state. Who has not taken the last one yet gets this one instead.
func (h *hub) send(state []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for l := range h.listeners {
		select {
		case <-l:
		default:
		}
		l <- state
	}
}

func (h *hub) wait() { h.running.Wait() }

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // every type here can be encoded
	}
	return b
}

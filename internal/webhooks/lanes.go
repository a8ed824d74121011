package webhooks

import (
	"sync"

	"github.com/google/uuid"
)

// lanes bounds the calls in flight of each endpoint, and of all together. An endpoint that does not
// answer in time gets half as many, down to one, and one more with every answer: many that hang must
// not use up what all share.
type lanes struct {
	perEndpoint, total int

	mu       sync.Mutex
	inFlight int
	of       map[uuid.UUID]*lane // endpoints with calls in flight or fewer lanes than usual
}

type lane struct{ inFlight, limit int }

func newLanes(perEndpoint, total int) *lanes {
	return &lanes{perEndpoint: perEndpoint, total: total, of: map[uuid.UUID]*lane{}}
}

// room returns how many more calls may begin: of the endpoints that differ from the rest, and in all.
func (l *lanes) room() (endpoints [][16]byte, rooms []int, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for id, lane := range l.of {
		endpoints = append(endpoints, id)
		rooms = append(rooms, max(0, lane.limit-lane.inFlight))
	}
	return endpoints, rooms, l.total - l.inFlight
}

func (l *lanes) begin(endpoint uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()

	e := l.of[endpoint]
	if e == nil {
		e = &lane{limit: l.perEndpoint}
		l.of[endpoint] = e
	}
	e.inFlight++
	l.inFlight++
}

// end ends a call; answered says whether there was any answer.
func (l *lanes) end(endpoint uuid.UUID, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	e := l.of[endpoint]
	e.inFlight--
	l.inFlight--

	if answered {
		e.limit = min(e.limit+1, l.perEndpoint)
	} else {
		e.limit = max(e.limit/2, 1)
	}
	if e.inFlight == 0 && e.limit == l.perEndpoint {
		delete(l.of, endpoint)
	}
}

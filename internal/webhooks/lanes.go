package webhooks

import (
	"sync"

	"github.com/google/uuid"
)

// lanes bounds the calls in flight of each endpoint, and of all together. Many that hang must not use up
// what all share, so an endpoint that does not answer in time gets half as many, down to one, and one
// more with every answer. Nor must many that answer a moment before the timeout, so an endpoint also
// has at most a quarter of what is free: the more are slow, the fewer calls each has, and something
// stays free for one that is quick.
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

// room returns how many more calls may begin: of the endpoints that differ from the rest, of each of
// the others, and in all. That is half of what is free: with the other half the shares of those who
// come next are counted again.
func (l *lanes) room() (endpoints [][16]byte, rooms []int, others, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	free := l.total - l.inFlight
	share := max(1, free/4)
	for id, lane := range l.of {
		endpoints = append(endpoints, id)
		rooms = append(rooms, max(0, min(lane.limit, share)-lane.inFlight))
	}
	return endpoints, rooms, min(l.perEndpoint, share), (free + 1) / 2
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

// end ends a call; answered: there was an answer.
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

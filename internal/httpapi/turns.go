package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// turns bounds how many requests of a tenant are at the database at a time. The others wait for a
// while, first come, first served: a tenant that floods the API slows itself down and not the
// database.
type turns struct {
	atATime  int
	pause    time.Duration // from the end of a turn to the next one in its place
	patience time.Duration // how long a request waits for its turn

	mu sync.Mutex
	of map[uuid.UUID]*turn // tenants with requests that have or await a turn, no others
}

type turn struct {
	taken chan struct{}
	users int // requests that have or await one
}

// newLookUps is for requests beyond their tenant's share or their client's rate, which are refused
// unless their key is finished. One looks at a time: a hundred a second are no load.
func newLookUps() *turns {
	return &turns{
		atATime: 1, pause: 10 * time.Millisecond, patience: time.Second, of: map[uuid.UUID]*turn{},
	}
}

// newReads is for reads through a pool of so many connections. It leaves half of them to other
// tenants.
func newReads(connections int) *turns {
	half := max(1, connections/2)
	return &turns{atATime: half, patience: 500 * time.Millisecond, of: map[uuid.UUID]*turn{}}
}

// take waits for a turn of the tenant. Call done to end it; nil: none came in time.
func (t *turns) take(ctx context.Context, tenant uuid.UUID) (done func()) {
	ctx, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()

	// The channel holds as many as may run at a time, and its senders queue in their order.
	mine := t.enter(tenant)
	select {
	case mine.taken <- struct{}{}:
	case <-ctx.Done():
		t.leave(tenant, mine)
		return nil
	}

	free := func() {
		<-mine.taken
		t.leave(tenant, mine)
	}
	if t.pause == 0 {
		return free
	}
	return func() { time.AfterFunc(t.pause, free) }
}

func (t *turns) enter(tenant uuid.UUID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()

	// users counts those that wait, too: the entry must not go while its channel is in use.
	mine := t.of[tenant]
	if mine == nil {
		mine = &turn{taken: make(chan struct{}, t.atATime)}
		t.of[tenant] = mine
	}
	mine.users++
	return mine
}

func (t *turns) leave(tenant uuid.UUID, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if mine.users--; mine.users == 0 {
		delete(t.of, tenant)
	}
}

package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	looksAtATime = 1                     // of a tenant's requests beyond its share or rate, in the database
	lookPause    = 10 * time.Millisecond // from the end of a look to the tenant's next: a hundred a second are no load
	lookPatience = time.Second           // how long such a request waits for its turn
)

// turns bounds how many of a tenant's requests that are refused unless their key is finished look at it at a time, and how often. The others
// wait, first come, first served: a tenant that floods slows itself down, and not the database for everybody.
type turns struct {
	mu sync.Mutex
	of map[uuid.UUID]*turn // tenants with requests that look or wait, no others
}

type turn struct {
	looking chan struct{}
	users   int // looking or waiting
}

func newTurns() *turns { return &turns{of: map[uuid.UUID]*turn{}} }

// take waits for a turn of the tenant. done ends it; nil: there was none in time.
func (t *turns) take(ctx context.Context, tenant uuid.UUID) (done func()) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	mine := t.enter(tenant)
	select {
	case mine.looking <- struct{}{}:
		return func() {
			time.AfterFunc(lookPause, func() {
				<-mine.looking
				t.leave(tenant, mine)
			})
		}
	case <-ctx.Done():
		t.leave(tenant, mine)
		return nil
	}
}

func (t *turns) enter(tenant uuid.UUID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := t.of[tenant]
	if mine == nil {
		mine = &turn{looking: make(chan struct{}, looksAtATime)}
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

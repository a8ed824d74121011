package httpapi

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// maxClients bounds the memory of limits. Client ids come from credentials, so strangers cannot
// fill it.
const maxClients = 10_000

// limits is a token bucket per client, of rate tokens a second and at least one. x/time/rate cannot
// give a token back, which a replay does.
type limits struct {
	rate  float64
	burst float64
	now   func() time.Time

	mu      sync.Mutex
	buckets map[uuid.UUID]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time // when tokens was computed
}

func newLimits(rate float64, now func() time.Time) *limits {
	return &limits{rate: rate, burst: max(1, rate), now: now, buckets: map[uuid.UUID]*bucket{}}
}

// take takes a token of the client and returns 0, or returns how long until there is one.
func (l *limits) take(client uuid.UUID) time.Duration {
	if l.rate <= 0 {
		return 0
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	b := l.buckets[client]
	if b == nil {
		if len(l.buckets) >= maxClients {
			l.evict(now)
		}
		b = &bucket{l.burst, now}
		l.buckets[client] = b
	}

	// The bucket is filled when it is looked at: no timer runs.
	b.tokens, b.at = l.level(b, now), now
	if b.tokens < 1 {
		return max(1, time.Duration((1-b.tokens)/l.rate*float64(time.Second)))
	}
	b.tokens--
	return 0
}

func (l *limits) giveBack(client uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if b := l.buckets[client]; b != nil { // it may have been evicted
		b.tokens = min(l.burst, b.tokens+1)
	}
}

func (l *limits) level(b *bucket, now time.Time) float64 {
	return min(l.burst, b.tokens+l.rate*now.Sub(b.at).Seconds())
}

// evict makes room. It drops full buckets, which hold no information, and otherwise any one, at the
// cost of one burst.
func (l *limits) evict(now time.Time) {
	var victim uuid.UUID
	for client, b := range l.buckets {
		if victim = client; l.level(b, now) >= l.burst {
			delete(l.buckets, client)
		}
	}
	delete(l.buckets, victim)
}

package traffic

import (
	"context"
	"math/rand/v2"
	"sync"
)

// end does what ends a hold, or tries to.
func (c *caller) end(ctx context.Context, hold made) {
	capture := func(n int64) request { return c.about(hold, "capture", n) }

	switch kind := rand.IntN(20); {
	case kind < 9:
		c.capture(ctx, capture(0))
	case kind < 13:
		c.capture(ctx, capture(1+rand.Int64N(hold.AmountMinor))) // the rest is released
	case kind < 16:
		c.send(ctx, c.about(hold, "cancel", 0))
	case kind < 18:
		c.race(ctx, hold)
	case kind < 19:
		c.send(ctx, capture(hold.AmountMinor+1)) // refused; then it expires
	default:
		// The client has an old version of the payment, and then the right one.
		stale := capture(0)
		stale.ifVersion = hold.Version + 1
		c.send(ctx, stale)

		fresh := capture(0)
		fresh.ifVersion = hold.Version
		c.capture(ctx, fresh)
	}
}

// capture sends a capture. What it moved may be refunded later.
func (c *caller) capture(ctx context.Context, r request) {
	a, known := c.send(ctx, r)
	if m, done := readMade(a); known && done {
		c.load.paid.add(m)
	}
}

// race captures a payment twice while another client cancels it. One of them succeeds.
func (c *caller) race(ctx context.Context, hold made) {
	cancel := c.about(hold, "cancel", 0)
	cancel.shop = c.other
	cancel.key += "-other" // the other client has callers with the same keys

	var wg sync.WaitGroup
	for _, r := range []request{c.about(hold, "capture", 0), c.about(hold, "capture", 1), cancel} {
		wg.Go(func() { c.post(ctx, r) })
	}
	wg.Wait()
}

// refund moves money of a completed payment back.
func (c *caller) refund(ctx context.Context, paid made) {
	left := paid.CapturedMinor - paid.RefundedMinor
	refund := func(n int64) request { return c.about(paid, "refunds", n) }

	switch kind := rand.IntN(10); {
	case kind < 4:
		c.send(ctx, refund(0)) // all that is left
	case kind < 8:
		part := 1 + rand.Int64N(left)
		_, known := c.send(ctx, refund(part))
		if paid.RefundedMinor += part; known && part < left {
			c.load.paid.add(paid)
		}
	case kind < 9:
		c.send(ctx, refund(left+1)) // refused
	default:
		// Two at once, of which each takes more than half.
		var wg sync.WaitGroup
		for _, r := range []request{refund(left/2 + 1), refund(left/2 + 1)} {
			wg.Go(func() { c.post(ctx, r) })
		}
		wg.Wait()
	}
}

// about makes a request about a payment. n is zero for all.
func (c *caller) about(m made, what string, n int64) request {
	return request{
		shop: c.shop, path: paymentsPath + "/" + m.ID.String() + "/" + what, key: c.key(), body: amount{n},
	}
}

// memory is what all clients remember of their payments. It forgets the oldest.
type memory struct {
	mu   sync.Mutex
	made []made
}

const remembered = 64

func (m *memory) add(p made) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made = append(m.made[max(0, len(m.made)+1-remembered):], p)
}

// take removes the newest payment, or one in ten times the oldest, whose hold is about to expire or
// has expired.
func (m *memory) take() (p made, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	n := len(m.made)
	switch {
	case n == 0:
		return p, false
	case rand.IntN(10) == 0:
		p, m.made = m.made[0], m.made[1:]
	default:
		p, m.made = m.made[n-1], m.made[:n-1]
	}
	return p, true
}

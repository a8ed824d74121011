// Package traffic is what the demo and the soak send to the service: payments and the habits of
// real clients, and parcels, whose many events have an order. What each client was told goes to a
// history that internal/invariant compares with the tables.
package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/client"
)

// Load is a set of clients. Most requests are new payments. Three in ten are habits of real
// clients that a payments service must survive: repeats, keys used twice, simultaneous
// duplicates, hanging up, payments that exceed any balance.
type Load struct {
	History *History
	First   chan struct{} // closed when the first payment was made

	shops    []shop
	inFlight atomic.Int64 // requests sent and not yet answered
	once     sync.Once
}

// shop is a client of the service. Both shops use the same keys, each for payments of its own.
type shop struct {
	*client.Client
	seed Seed
}

// clients is how many send at the same time: well above the 50 requests to be in flight at a kill.
const clients = 160

// longestHangUp is about as long as an answer takes under this load.
const longestHangUp = 100 * time.Millisecond

// patience is how long clients repeat requests after the load has ended.
const patience = 30 * time.Second

// New makes clients of the service at url, and their history in dir. The caller closes the history.
func New(dir, url string, seeds []Seed) (*Load, error) {
	h, err := openHistory(filepath.Join(dir, "history.jsonl"))
	if err != nil {
		return nil, err
	}

	l := &Load{History: h, First: make(chan struct{})}

	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * clients // each keeps its connection, duplicates included

	for _, s := range seeds {
		l.shops = append(l.shops, shop{seed: s, Client: &client.Client{
			URL: url, Token: s.Token, Attempted: func(a client.Attempt) { h.add(s.ClientID, a) },
			HTTP: &http.Client{Timeout: 20 * time.Second, Transport: counting{transport, &l.inFlight}},
		}})
	}

	return l, nil
}

// counting counts the requests that the server has.
type counting struct {
	next     http.RoundTripper
	inFlight *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	return c.next.RoundTrip(r)
}

// InFlight returns the number of requests sent and not yet answered.
func (l *Load) InFlight() int64 { return l.inFlight.Load() }

// Run sends rate requests a second (0: as fast as they are answered) until soft ends. It returns
// when each of them has its answer, patience is over, or hard ends.
func (l *Load) Run(soft, hard context.Context, rate int) {
	seeing, stop := context.WithCancel(hard)
	defer stop()
	defer context.AfterFunc(soft, func() { time.AfterFunc(patience, stop) })()

	// Clients stop taking tickets when soft ends, and see their last request through.
	tickets := make(chan struct{})
	go func() {
		defer close(tickets)
		issue(soft, tickets, rate)
	}()

	var wg sync.WaitGroup
	for n := range clients {
		c := caller{load: l, shop: l.shops[n%len(l.shops)], name: n / len(l.shops)}
		wg.Go(func() {
			for range tickets {
				c.next(seeing)
			}
		})
	}
	wg.Wait()
}

// issue hands out tickets, each good for one request, at the given rate. Tickets expire if no
// client is free.
func issue(ctx context.Context, tickets chan<- struct{}, rate int) {
	if rate == 0 {
		for {
			select {
			case tickets <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}

	tick := time.NewTicker(min(time.Second/time.Duration(rate), 10*time.Millisecond))
	defer tick.Stop()

	began := time.Now()
	for issued := 0; ; {
		select {
		case <-tick.C:
			// Count from the start: ticks may be late or lost, the rate must not.
			for due := int(time.Since(began).Seconds() * float64(rate)); issued < due; issued++ {
				select {
				case tickets <- struct{}{}:
				default:
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// caller is one client with its memory of earlier requests.
type caller struct {
	load    *Load
	shop    shop
	name    int
	sent    int
	earlier []order // the last few that were answered
}

type order struct {
	key string
	Payment
}

// Payment is the body of a request.
type Payment struct {
	AmountMinor        int64     `json:"amount_minor"`
	Currency           string    `json:"currency"`
	SourceAccount      uuid.UUID `json:"source_account"`
	DestinationAccount uuid.UUID `json:"destination_account"`
}

// tooMuch exceeds the balance of every account of the demo.
const tooMuch = 900_000_000_000

// next sends one request. Some are deliberately wrong, repeated or cut off.
func (c *caller) next(ctx context.Context) {
	// kind is a percentage: each habit takes its share.
	kind := rand.IntN(100)

	if kind < 15 && len(c.earlier) > 0 {
		o := c.earlier[rand.IntN(len(c.earlier))]
		if kind < 5 {
			o.AmountMinor++ // a key used for another payment: refused, and nothing moves
		}
		c.post(ctx, o)
		return
	}

	o := c.order()
	switch {
	case kind < 18:
		o.AmountMinor = tooMuch // declined
	case kind < 20:
		o.DestinationAccount = uuid.New() // no such account
	case kind < 25:
		// Hang up, often between COMMIT and the answer, and ask again below.
		impatient, hangUp := context.WithTimeout(ctx, rand.N(longestHangUp))
		_, _ = c.shop.Post(impatient, "/api/v1/payments", o.key, o.Payment)
		hangUp()
	case kind < 30:
		// The same payment three times at once, and another one under its key. One of them is made.
		var wg sync.WaitGroup
		defer wg.Wait()

		other := o
		other.AmountMinor++
		for _, o := range []order{o, o, other} {
			wg.Go(func() { c.post(ctx, o) })
		}
	}

	if c.post(ctx, o) {
		c.earlier = append(c.earlier[max(0, len(c.earlier)-31):], o)
	}
}

func (c *caller) order() order {
	c.sent++
	all := c.shop.seed.Accounts

	// Two different accounts.
	from := rand.IntN(len(all))
	to := (from + 1 + rand.IntN(len(all)-1)) % len(all)

	return order{
		key: fmt.Sprintf("demo-%d-%d", c.name, c.sent),
		Payment: Payment{
			AmountMinor: 1 + rand.Int64N(1000), Currency: "USD",
			SourceAccount: all[from].ID, DestinationAccount: all[to].ID,
		},
	}
}

// post sends a payment until its outcome is known, and reports whether it is.
func (c *caller) post(ctx context.Context, o order) bool {
	a, err := c.shop.Post(ctx, "/api/v1/payments", o.key, o.Payment)
	if err == nil && a.Status == http.StatusCreated {
		c.load.once.Do(func() { close(c.load.First) })
	}
	if err != nil {
		c.load.History.Unknown.Add(1)
	}

	return err == nil
}

// Package traffic is what the demo and the soak send to the service: payments through their whole
// life, with the habits of real clients. What each client was told goes to a history that
// internal/invariant compares with the tables.
package traffic

import (
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncepay/oncepay/internal/client"
)

// Load is a set of clients. Six in ten requests are new payments, of which a third only hold the
// money. The others capture, cancel and refund them, or are habits of real clients that a payments
// service must survive: repeats, keys used twice, simultaneous duplicates, hanging up, payments that
// exceed any balance. A hold that is left alone expires. With Cards an eighth of the payments comes
// by card.
type Load struct {
	History *History
	First   chan struct{} // closed when the first payment was made
	Cards   bool          // some pay by card; set it before Run

	shops    []shop
	holds    memory       // authorized payments
	paid     memory       // completed ones
	charged  memory       // those by card, which may still be processing
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
		c := caller{
			load: l, shop: l.shops[n%len(l.shops)], other: l.shops[(n+1)%len(l.shops)],
			name: n / len(l.shops),
		}
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

// Pause returns after d, or when ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

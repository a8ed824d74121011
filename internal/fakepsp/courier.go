package fakepsp

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// The courier sends up to couriers webhooks at a time.
const couriers = 16

// What a receiver gets.
const (
	sendTimeout = 10 * time.Second
	firstRetry  = 250 * time.Millisecond
	// maxRetry lets a receiver that was away have everything soon after it is back.
	maxRetry = 10 * time.Second
	// shuffleWithin is how much later than others a shuffled event may come.
	shuffleWithin = 2 * time.Second
)

// courier sends webhooks, apart from the calls that cause them.
type courier struct {
	psp    *PSP
	signer *standardwebhooks.Webhook
	client *http.Client

	ctx  context.Context // of all sending
	stop func()          // and wait

	mu    sync.Mutex
	queue deliveries
	added uint64        // deliveries so far
	wake  chan struct{} // tells run that the queue has a new first
	work  chan *delivery
	all   sync.WaitGroup
}

// delivery is events of one charge or refund that go out one after the other.
type delivery struct {
	events []event
	again  bool // a doubled event: not repeated if it fails
	tries  int
	due    time.Time
	n      uint64 // of two that are due at the same time, the one added first goes first
}

func newCourier(p *PSP, signer *standardwebhooks.Webhook) *courier {
	c := &courier{
		psp: p, signer: signer, wake: make(chan struct{}, 1), work: make(chan *delivery),
		client: &http.Client{
			Timeout:   sendTimeout,
			Transport: &http.Transport{MaxIdleConnsPerHost: couriers},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse // which is no success
			},
		},
	}

	ctx, cancel := context.WithCancel(context.Background())
	c.ctx = ctx
	c.stop = func() {
		cancel()
		c.all.Wait()
		c.client.CloseIdleConnections()
	}
	return c
}

// start sends what is left from before, and what add brings.
func (c *courier) start(left []event) {
	for len(left) > 0 {
		n := 1
		for n < len(left) && left[n].object == left[0].object {
			n++
		}
		c.add(left[:n])
		left = left[n:]
	}

	c.all.Go(c.run)
	for range couriers {
		c.all.Go(func() {
			for d := range c.work {
				c.deliver(d)
			}
		})
	}
}

// add queues the events of one charge or refund.
func (c *courier) add(events []event) {
	if len(events) == 0 {
		return
	}
	f := c.psp.Faults()
	due := events[0].at.Add(time.Duration(f.WebhookDelay))

	c.mu.Lock()
	// A stream of its own: webhooks draw nothing from the calls.
	dice := rand.New(rand.NewPCG(^c.psp.options.Seed, c.added))
	doubled := dice.Float64() < f.WebhookDouble
	shuffled := dice.Float64() < f.WebhookShuffle
	later := func() time.Time {
		return due.Add(time.Duration(dice.Int64N(int64(shuffleWithin))))
	}

	if shuffled {
		for _, e := range events {
			c.push(&delivery{events: []event{e}, due: later()})
		}
	} else {
		c.push(&delivery{events: events, due: due})
	}
	if doubled {
		for _, e := range events {
			c.push(&delivery{events: []event{e}, due: later(), again: true})
		}
	}
	c.mu.Unlock()
	c.signal()

	if doubled {
		c.psp.injected(webhooksDoubled)
	}
	if shuffled {
		c.psp.injected(webhooksShuffled)
	}
}

// push needs the lock.
func (c *courier) push(d *delivery) {
	c.added++
	d.n = c.added
	heap.Push(&c.queue, d)
}

func (c *courier) signal() {
	select {
	case c.wake <- struct{}{}:
	default: // run has been told already
	}
}

// run hands what is due to those who send.
func (c *courier) run() {
	defer close(c.work)
	timer := time.NewTimer(0)
	defer timer.Stop()

	for c.ctx.Err() == nil {
		d, wait := c.take(time.Now())
		if d != nil {
			select {
			case c.work <- d:
			case <-c.ctx.Done():
			}
			continue
		}

		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.ctx.Done():
		}
	}
}

// take returns a delivery that is due, or how long to wait for one.
func (c *courier) take(now time.Time) (*delivery, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if len(c.queue) == 0 {
		return nil, time.Hour
	}
	if wait := c.queue[0].due.Sub(now); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&c.queue).(*delivery), 0
}

// deliver sends the events in order. After a failure the rest comes again later.
func (c *courier) deliver(d *delivery) {
	for len(d.events) > 0 {
		e := d.events[0]
		if err := c.send(e); err != nil {
			c.retry(d, e, err)
			return
		}

		// Crash point: delivered, not noted. It is sent again after the next start.
		if !d.again {
			c.psp.journal.note(record{Delivered: e.id})
		}
		d.events, d.tries = d.events[1:], 0
	}
}

func (c *courier) retry(d *delivery, e event, err error) {
	if d.again || c.ctx.Err() != nil {
		return
	}

	if d.tries == 0 {
		c.psp.log.WarnContext(c.ctx, "webhook failed, will be sent again",
			"event", e.id, "error", err)
	}
	d.tries++

	backoff := min(firstRetry<<min(d.tries-1, 10), maxRetry)
	backoff = backoff/2 + rand.N(backoff/2) // so that they do not come back all at once

	c.mu.Lock()
	d.due = time.Now().Add(backoff)
	c.push(d)
	c.mu.Unlock()
	c.signal()
}

// send returns nil after an answer of 2xx.
func (c *courier) send(e event) error {
	body, err := e.body()
	if err != nil {
		return err
	}

	now := time.Now()
	signature, err := c.signer.Sign(e.id, now, body)
	if err != nil {
		return err
	}

	r, err := http.NewRequestWithContext(
		c.ctx, http.MethodPost, c.psp.options.WebhookURL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(standardwebhooks.HeaderWebhookID, e.id)
	r.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	r.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)

	answer, err := c.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxBody) // the connection can be used again

	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return fmt.Errorf("the answer is %s", answer.Status)
	}
	return nil
}

// deliveries is a heap by time.
type deliveries []*delivery

func (q deliveries) Len() int      { return len(q) }
func (q deliveries) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *deliveries) Push(x any)   { *q = append(*q, x.(*delivery)) }

func (q deliveries) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].n < q[j].n
}

func (q *deliveries) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return d
}

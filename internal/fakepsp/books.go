package fakepsp

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Charge is a charge as the API shows it.
type Charge struct {
	ID            string            `json:"id"`
	Object        string            `json:"object"` // "charge"
	Amount        int64             `json:"amount"`
	Currency      string            `json:"currency"`
	Status        string            `json:"status"` // succeeded or declined
	PaymentMethod string            `json:"payment_method"`
	Metadata      map[string]string `json:"metadata"`
	Created       int64             `json:"created"`  // Unix seconds
	Refunded      int64             `json:"refunded"` // by refunds that succeeded
}

// Refund is a refund as the API shows it.
type Refund struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"` // "refund"
	Charge   string            `json:"charge"`
	Amount   int64             `json:"amount"`
	Currency string            `json:"currency"`
	Status   string            `json:"status"` // succeeded or declined
	Metadata map[string]string `json:"metadata"`
	Created  int64             `json:"created"` // Unix seconds
}

// The ends of a charge or refund.
const (
	succeeded = "succeeded"
	declined  = "declined"
)

// books is what the journal says, in memory.
type books struct {
	mu       sync.RWMutex
	charges  shelf[Charge]
	refunds  shelf[Refund]
	keys     map[string]*use
	reserved map[string]int64 // of charges, by refunds that are being written
	injected map[string]int64 // faults, by their names
	pending  map[string]event // not delivered, by id
}

// use is what a key was used for. Its answer is made from the record again, and comes out the same.
type use struct {
	request string
	running bool
	record  record
}

func newBooks() *books {
	b := &books{
		charges: newShelf[Charge](), refunds: newShelf[Refund](),
		keys: map[string]*use{}, reserved: map[string]int64{},
		injected: map[string]int64{}, pending: map[string]event{},
	}
	for _, name := range faultNames {
		b.injected[name] = 0
	}
	return b
}

// apply adds a record that is on disk, and returns the events that it brings.
func (b *books) apply(r record) []event {
	b.mu.Lock()
	defer b.mu.Unlock()

	switch {
	case r.Charge != nil:
		c := *r.Charge // the record keeps what was answered, the shelf follows refunds
		b.charges.add(c.ID, r.Key, &c)

	case r.Refund != nil:
		b.refunds.add(r.Refund.ID, r.Key, r.Refund)
		b.refund(*r.Refund)

	case r.Delivered != "":
		delete(b.pending, r.Delivered)
		return nil

	default:
		b.injected[r.Fault]++
		return nil
	}

	b.keys[r.Key] = &use{request: r.Request, record: r}

	if !r.Events {
		return nil
	}
	events := r.events()
	for _, e := range events {
		b.pending[e.id] = e
	}
	return events
}

func (b *books) refund(r Refund) {
	c := b.charges.byID[r.Charge]
	if c == nil || r.Status != succeeded {
		return
	}
	c.value.Refunded += r.Amount

	// Nothing is reserved while the journal is read back.
	if b.reserved[r.Charge] -= r.Amount; b.reserved[r.Charge] <= 0 {
		delete(b.reserved, r.Charge)
	}
}

// claimed is what begin found out about a key.
type claimed int

const (
	fresh claimed = iota // it is the caller's now, who ends it by a record or by release
	finished
	inUse
	reused // for another request
)

// begin claims a key for a request. A finished key comes with the record of its use.
func (b *books) begin(key, request string, now time.Time, forget time.Duration) (claimed, record) {
	b.mu.Lock()
	defer b.mu.Unlock()

	u := b.keys[key]
	if u != nil && !u.running && forget > 0 && now.Sub(u.record.At) > forget {
		u = nil
	}

	switch {
	case u == nil:
		b.keys[key] = &use{request: request, running: true}
		return fresh, record{}
	case u.request != request:
		return reused, record{}
	case u.running:
		return inUse, record{}
	}
	return finished, u.record
}

// running reports whether a request with the key is in progress.
func (b *books) running(key string) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()

	u := b.keys[key]
	return u != nil && u.running
}

// release frees a key whose request was not executed.
func (b *books) release(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.keys, key)
}

// charge returns the charge of that id.
func (b *books) charge(id string) (Charge, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()

	c := b.charges.byID[id]
	if c == nil {
		return Charge{}, false
	}
	return *c.value, true
}

// reserve keeps an amount of a charge for one refund, if so much is left.
func (b *books) reserve(id string, amount int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	c := b.charges.byID[id].value
	if amount > c.Amount-c.Refunded-b.reserved[id] {
		return false
	}
	b.reserved[id] += amount
	return true
}

// undelivered returns the events that wait, in their order.
func (b *books) undelivered() []event {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.SortedFunc(maps.Values(b.pending), event.compare)
}

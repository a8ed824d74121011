package relay

import (
	"sync"

	"github.com/google/uuid"
)

// book sets what was read against what was committed.
type book struct {
	mu        sync.Mutex
	committed map[uuid.UUID]bool
	waited    map[uuid.UUID]bool // committed, and not to be had when everything that is committed had to be
	read      []Message
}

func newBook() *book { return &book{committed: map[uuid.UUID]bool{}, waited: map[uuid.UUID]bool{}} }

func (b *book) commit(events ...uuid.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		b.committed[e] = true
	}
}

func (b *book) receive(batch []Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read = append(b.read, batch...)
}

// expectAll says that the cursor was read to its end: now all that is committed has been read, whoever is still open.
func (b *book) expectAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := range b.missing() {
		b.waited[e] = true
	}
}

func (b *book) missing() map[uuid.UUID]bool {
	missing := make(map[uuid.UUID]bool, len(b.committed))
	for e := range b.committed {
		missing[e] = true
	}
	for _, m := range b.read {
		delete(missing, m.EventID)
	}
	return missing
}

// fault is a way to break a promise.
type fault string

const (
	lost       fault = "lost"         // committed, and never read
	late       fault = "late"         // held up by somebody else's transaction
	doubled    fault = "doubled"      // read more than once
	invented   fault = "invented"     // never committed
	outOfOrder fault = "out of order" // not the version behind the last one of its aggregate
)

// faults counts the events that each fault was found with. Empty: every promise was kept.
func (b *book) faults() map[fault]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := map[fault]int{}
	count := func(f fault, n int) {
		if n > 0 {
			found[f] += n
		}
	}
	times, sent := map[uuid.UUID]int{}, map[string]int64{}
	for _, m := range b.read {
		if !b.committed[m.EventID] {
			count(invented, 1)
		}
		if times[m.EventID]++; times[m.EventID] > 1 {
			count(doubled, 1)
			continue // where it belongs it has been
		}
		if *m.AggregateVersion != sent[m.AggregateID]+1 {
			count(outOfOrder, 1)
		}
		sent[m.AggregateID] = *m.AggregateVersion
	}
	missing := b.missing()
	count(lost, len(missing))
	for e := range b.waited {
		if !missing[e] {
			count(late, 1)
		}
	}
	return found
}

package relay

import (
	"sync"

	"github.com/google/uuid"
)

// readLog compares what was read with what was committed.
type readLog struct {
	mu        sync.Mutex
	committed map[uuid.UUID]bool
	waited    map[uuid.UUID]bool // committed, and not to be had when everything that is committed had to be
	read      []Message
}

func newReadLog() *readLog {
	return &readLog{committed: map[uuid.UUID]bool{}, waited: map[uuid.UUID]bool{}}
}

func (l *readLog) commit(events ...uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		l.committed[e] = true
	}
}

func (l *readLog) receive(batch []Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = append(l.read, batch...)
}

// expectAll says that the cursor was read to its end: now all that is committed has been read, whoever is still open.
func (l *readLog) expectAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := range l.missing() {
		l.waited[e] = true
	}
}

func (l *readLog) missing() map[uuid.UUID]bool {
	missing := make(map[uuid.UUID]bool, len(l.committed))
	for e := range l.committed {
		missing[e] = true
	}
	for _, m := range l.read {
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
func (l *readLog) faults() map[fault]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := map[fault]int{}
	count := func(f fault, n int) {
		if n > 0 {
			found[f] += n
		}
	}
	times, sent := map[uuid.UUID]int{}, map[string]int64{}
	for _, m := range l.read {
		if !l.committed[m.EventID] {
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
	missing := l.missing()
	count(lost, len(missing))
	for e := range l.waited {
		if !missing[e] {
			count(late, 1)
		}
	}
	return found
}

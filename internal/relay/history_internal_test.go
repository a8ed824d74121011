package relay

import (
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
)

// history is where transactions happen and a cursor reads behind them: a model of Postgres, or Postgres.
type history interface {
	begin(slot int)
	touch(slot int)                           // draw an xid and write no event
	write(slot int, m Message)                // append an event
	savepoint(slot int, m Message, keep bool) // append an event in a savepoint, and release it or roll back to it
	end(slot int, commit bool)                // COMMIT or ROLLBACK
	read() ([]Message, Position)              // read one batch, move the cursor behind it
}

// narrator makes up a history and logs what was read of it.
type narrator struct {
	rng      *rand.Rand
	history  history
	open     [6]bool
	pending  [6][]uuid.UUID
	locks    [6]int   // which slot holds the aggregate's row lock; -1: none
	version  [6]int64 // as the holder of the lock sees it
	settled  [6]int64 // as committed
	log      *readLog
	position Position
}

// tell lets a random history of so many steps happen and returns what went wrong in it.
func tell(seed uint64, steps int, h history) map[fault]int {
	n := &narrator{rng: rand.New(rand.NewPCG(seed, 0)), history: h, locks: [6]int{-1, -1, -1, -1, -1, -1}, log: newReadLog()}
	for range steps {
		switch dice := n.rng.IntN(100); {
		case dice < 20:
			n.read()
		case dice < 23:
			n.drain()
		default:
			n.act(n.rng.IntN(len(n.open)))
		}
	}
	for slot := range n.open {
		if n.open[slot] {
			n.finish(slot, n.rng.IntN(3) > 0)
		}
		n.read()
	}
	n.drain()
	return n.log.faults()
}

func (n *narrator) act(slot int) {
	if !n.open[slot] {
		n.open[slot] = true
		n.history.begin(slot)
		return
	}
	switch dice := n.rng.IntN(100); {
	case dice < 70:
		aggregate := n.rng.IntN(len(n.locks))
		if n.locks[aggregate] >= 0 && n.locks[aggregate] != slot {
			return // it would wait for the lock
		}
		n.locks[aggregate] = slot
		m := n.event(aggregate, n.version[aggregate]+1)
		if dice < 8 {
			n.history.savepoint(slot, m, false)
			return
		}
		n.version[aggregate]++
		n.pending[slot] = append(n.pending[slot], m.EventID)
		if dice < 16 {
			n.history.savepoint(slot, m, true)
			return
		}
		n.history.write(slot, m)
	case dice < 75:
		n.history.touch(slot)
	case slot < 2 && n.rng.IntN(4) > 0: // these two stay open for longer, and leave more stragglers than a batch holds
	case dice < 93:
		n.finish(slot, true)
	default:
		n.finish(slot, false)
	}
}

func (n *narrator) event(aggregate int, version int64) Message {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(n.rng.Uint32())
	}
	return Message{EventID: id, AggregateType: "things", AggregateID: fmt.Sprint("thing-", aggregate), AggregateVersion: &version, Payload: []byte("{}")}
}

func (n *narrator) finish(slot int, commit bool) {
	n.history.end(slot, commit)
	if commit {
		n.log.commit(n.pending[slot]...)
	}
	for aggregate := range n.locks {
		if n.locks[aggregate] != slot {
			continue
		}
		n.locks[aggregate] = -1
		if commit {
			n.settled[aggregate] = n.version[aggregate]
		}
		n.version[aggregate] = n.settled[aggregate]
	}
	n.open[slot], n.pending[slot] = false, nil
}

func (n *narrator) read() (more bool) {
	batch, position := n.history.read()
	n.log.receive(batch)
	more = len(batch) > 0 || position != n.position
	n.position = position
	return more
}

// drain reads until there is nothing more.
func (n *narrator) drain() {
	for n.read() {
	}
	n.log.expectAll()
}

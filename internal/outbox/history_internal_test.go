package outbox

import (
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
)

// history is where transactions happen and a cursor reads behind them: a model of Postgres, or Postgres.
type history interface {
	begin(slot int)
	touch(slot int)              // draw an xid and write no event
	write(slot int, m Message)   // append an event
	undo(slot int, m Message)    // append an event in a savepoint and roll back to it
	end(slot int, commit bool)   // COMMIT or ROLLBACK
	read() ([]Message, Position) // read one batch, move the cursor behind it
}

// narrator makes up a history and checks what was read of it.
type narrator struct {
	rng      *rand.Rand
	history  history
	open     [6]bool
	pending  [6][]Message
	locks    [4]int   // which slot holds the aggregate's row lock; -1: none
	version  [4]int64 // as the holder of the lock sees it
	settled  [4]int64 // as committed
	expected map[uuid.UUID]bool
	read     map[uuid.UUID]bool
	sent     [4]int64 // last version read
	position Position
}

// tell lets a random history of so many steps happen and returns the first broken promise: an event that is lost, invented,
// read twice or out of its aggregate's order, or that waits for somebody else's transaction.
func tell(seed uint64, steps int, h history) error {
	n := &narrator{
		rng: rand.New(rand.NewPCG(seed, 0)), history: h, locks: [4]int{-1, -1, -1, -1},
		expected: map[uuid.UUID]bool{}, read: map[uuid.UUID]bool{},
	}
	for range steps {
		var err error
		switch dice := n.rng.IntN(100); {
		case dice < 20:
			_, err = n.readBatch()
		case dice < 23:
			err = n.drain()
		default:
			n.act(n.rng.IntN(len(n.open)))
		}
		if err != nil {
			return err
		}
	}
	for slot := range n.open {
		if n.open[slot] {
			n.finish(slot, n.rng.IntN(3) > 0)
		}
		if _, err := n.readBatch(); err != nil {
			return err
		}
	}
	return n.drain()
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
		if dice < 8 {
			n.history.undo(slot, n.event(aggregate, n.version[aggregate]+1))
			return
		}
		n.version[aggregate]++
		m := n.event(aggregate, n.version[aggregate])
		n.pending[slot] = append(n.pending[slot], m)
		n.history.write(slot, m)
	case dice < 75:
		n.history.touch(slot)
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
	return Message{EventID: id, AggregateType: "things", AggregateID: string(rune('0' + aggregate)), AggregateVersion: &version, Payload: []byte("{}")}
}

func (n *narrator) finish(slot int, commit bool) {
	n.history.end(slot, commit)
	if commit {
		for _, m := range n.pending[slot] {
			n.expected[m.EventID] = true
		}
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

func (n *narrator) readBatch() (more bool, err error) {
	batch, position := n.history.read()
	for _, m := range batch {
		aggregate := m.AggregateID[0] - '0'
		switch {
		case !n.expected[m.EventID]:
			return false, fmt.Errorf("invented: %s version %d", m.AggregateID, *m.AggregateVersion)
		case n.read[m.EventID]:
			return false, fmt.Errorf("doubled: %s version %d", m.AggregateID, *m.AggregateVersion)
		case *m.AggregateVersion != n.sent[aggregate]+1:
			return false, fmt.Errorf("out of order: %s version %d behind %d", m.AggregateID, *m.AggregateVersion, n.sent[aggregate])
		}
		n.read[m.EventID] = true
		n.sent[aggregate] = *m.AggregateVersion
	}
	if position.Last < n.position.Last {
		return false, fmt.Errorf("last went down from %d to %d", n.position.Last, position.Last)
	}
	more = len(batch) > 0 || position != n.position
	n.position = position
	return more, nil
}

// drain reads until there is nothing more. Then all that is committed must have been read, whoever is still open.
func (n *narrator) drain() error {
	for {
		more, err := n.readBatch()
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	if len(n.read) < len(n.expected) {
		return fmt.Errorf("lost or late: %d of %d events", len(n.expected)-len(n.read), len(n.expected))
	}
	return nil
}

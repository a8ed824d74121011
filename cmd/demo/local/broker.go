package local

import (
	"errors"
	"sync"

	"github.com/oncepay/oncepay/internal/embedded"
)

// Broker is Kafka, which runs inside the demo: it has no process of its own to kill or freeze.
type Broker struct {
	*embedded.Kafka

	mu   sync.Mutex
	thaw func() // nil: it is not frozen
}

// State returns the broker's.
func (b *Broker) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.thaw != nil:
		return Frozen
	case b.Down():
		return Down
	}
	return Running
}

// Kill takes the broker away until Start.
func (b *Broker) Kill() error {
	if b.State() != Running {
		return errors.New("kafka is " + string(b.State()))
	}
	b.SetDown(true)
	return nil
}

// Start brings it back with all that it had.
func (b *Broker) Start() { b.SetDown(false) }

// Freeze makes it answer nothing until Thaw.
func (b *Broker) Freeze() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.thaw != nil:
		return errors.New("kafka is frozen")
	case b.Down():
		return errors.New("kafka is down")
	}
	b.thaw = b.Kafka.Freeze()
	return nil
}

// Thaw lets it answer.
func (b *Broker) Thaw() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.thaw == nil {
		return errors.New("kafka is not frozen")
	}
	b.thaw()
	b.thaw = nil
	return nil
}

func (b *Broker) heal() {
	_ = b.Thaw() // not frozen
	b.Start()
}

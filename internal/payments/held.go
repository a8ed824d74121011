package payments

import (
	"sync"

	"github.com/google/uuid"
)

// Advanced, like await.go, which uses it.

// held are the accounts that other sessions are known to keep locked.
type held struct {
	mu       sync.Mutex
	accounts map[uuid.UUID]bool // whether a request watches it
	watched  int
	awaiting int
}

// of returns a held account that r needs, if there is one.
func (h *held) of(r Request) (id uuid.UUID, found bool) {
	c, ok := r.Command.(CreatePayment)
	if !ok {
		return id, false
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range []uuid.UUID{c.SourceAccount, c.DestinationAccount} {
		if _, found := h.accounts[id]; found {
			return id, true
		}
	}
	return id, false
}

func (h *held) add(id uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.accounts == nil {
		h.accounts = map[uuid.UUID]bool{}
	}
	if _, found := h.accounts[id]; !found {
		h.accounts[id] = false
	}
}

// enter reports whether one more request may wait. If so, call leave afterwards.
func (h *held) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.awaiting >= maxAwaiting {
		return false
	}
	h.awaiting++
	return true
}

func (h *held) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaiting--
}

// watch reports whether the caller must watch the account. If so, call unwatch afterwards.
func (h *held) watch(id uuid.UUID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	watched, found := h.accounts[id]
	if !found || watched || h.watched >= maxWatched {
		return false
	}

	h.accounts[id] = true
	h.watched++
	return true
}

func (h *held) unwatch(id uuid.UUID, free bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.watched--
	h.accounts[id] = false
	if free {
		delete(h.accounts, id)
	}
}

package payments

import (
	"sync"

	"github.com/google/uuid"
)

// Advanced, like await.go, which uses it.

// held are the accounts that other sessions are known to keep locked.
type held struct {
	mu       sync.Mutex
	accounts map[accountKey]bool // whether a request watches it
	watched  int
	awaiting int
}

// of returns a held account that r needs, if there is one. Another tenant's account is not: r is
// refused as always, and learns nothing.
func (h *held) of(r Request) (a accountKey, found bool) {
	c, ok := r.Command.(CreatePayment)
	if !ok {
		return a, false
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range []uuid.UUID{c.SourceAccount, c.DestinationAccount} {
		a := accountKey{id, r.TenantID}
		if _, found := h.accounts[a]; found {
			return a, true
		}
	}
	return a, false
}

func (h *held) add(a accountKey) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.accounts == nil {
		h.accounts = map[accountKey]bool{}
	}
	if _, found := h.accounts[a]; !found {
		h.accounts[a] = false
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
func (h *held) watch(a accountKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	watched, found := h.accounts[a]
	if !found || watched || h.watched >= maxWatched {
		return false
	}

	h.accounts[a] = true
	h.watched++
	return true
}

func (h *held) unwatch(a accountKey, free bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.watched--
	h.accounts[a] = false
	if free {
		delete(h.accounts, a)
	}
}

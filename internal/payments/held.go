package payments

import (
	"sync"
)

// Advanced, like await.go, which uses it.

// row is an account, or a payment, that transactions lock.
type row struct {
	rowKey
	payment bool
}

// held are the rows that other sessions are known to keep locked.
type held struct {
	mu       sync.Mutex
	rows     map[row]bool        // whether a request watches it
	accounts map[rowKey][]rowKey // of payments that were looked up while something is held
	watched  int
	awaiting int
}

// none reports whether nothing is held.
func (h *held) none() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.rows) == 0
}

// of returns a held row that r needs, if there is one. Another tenant's is not: r is refused as
// always, and learns nothing.
func (h *held) of(r Request) (needed row, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, needed := range h.needs(r) {
		if _, found := h.rows[needed]; found {
			return needed, true
		}
	}
	return needed, false
}

// needs returns the rows that r locks, as far as they are known.
func (h *held) needs(r Request) []row {
	if c, ok := r.Command.(CreatePayment); ok {
		return []row{
			{rowKey: rowKey{c.SourceAccount, r.TenantID}},
			{rowKey: rowKey{c.DestinationAccount, r.TenantID}},
		}
	}

	target, ok := targetOf(r.Command)
	if !ok {
		return nil
	}
	payment := rowKey{target.PaymentID, r.TenantID}
	needed := []row{{payment, true}}
	for i, a := range h.accounts[payment] {
		if i == 0 || !releases(r.Command) { // the source comes first
			needed = append(needed, row{rowKey: a})
		}
	}
	return needed
}

// unknown returns those of payments whose accounts are not known.
func (h *held) unknown(payments []rowKey) (unknown []rowKey) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, p := range payments {
		if _, found := h.accounts[p]; !found {
			unknown = append(unknown, p)
		}
	}
	return unknown
}

// learn notes the accounts of a payment.
func (h *held) learn(payment rowKey, accounts []rowKey) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.accounts == nil || len(h.accounts) >= maxLearned {
		h.accounts = map[rowKey][]rowKey{}
	}
	h.accounts[payment] = accounts
}

func (h *held) add(r row) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.rows == nil {
		h.rows = map[row]bool{}
	}
	if _, found := h.rows[r]; !found {
		h.rows[r] = false
	}
}

// ids returns the accounts and the payments that are held.
func (h *held) ids() (accounts, payments [][16]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()

	accounts, payments = [][16]byte{}, [][16]byte{} // not nil, which would be NULL
	for r := range h.rows {
		if r.payment {
			payments = append(payments, r.id)
		} else {
			accounts = append(accounts, r.id)
		}
	}
	return accounts, payments
}

// clear forgets what is held, so that it is tried again.
func (h *held) clear() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.rows)
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

// watch reports whether the caller must watch the row. If so, call unwatch afterwards.
func (h *held) watch(r row) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	watched, found := h.rows[r]
	if !found || watched || h.watched >= maxWatched {
		return false
	}

	h.rows[r] = true
	h.watched++
	return true
}

func (h *held) unwatch(r row, free bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.watched--
	h.rows[r] = false
	if free {
		delete(h.rows, r)
	}
}

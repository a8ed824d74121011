package payments

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// Somebody may lock an account and stay: psql in an open transaction, an instance that froze. A batch waits 200 ms for a row, as long as dozens of
// our own transactions take. Then it is run again without the requests that need this account, and until the account is free they are left aside
// from the beginning: they wait in Await, with no transaction and no committer of their own.
//
// Nobody waits for such an account while it holds another one, so there is no circle: Await locks that one row alone and lets go of it at once.
const (
	lockPatience = `SET LOCAL lock_timeout = '200ms'`
	lockDefault  = `SET LOCAL lock_timeout TO DEFAULT`

	heldPatience = 5 * time.Second // how long a request waits for its accounts: within the handler's 8 s
	heldPoll     = 25 * time.Millisecond
	mostHeld     = 1000 // requests that wait so; more are Busy at once
	mostWatched  = 4    // accounts that are watched at a time, each on a connection
)

// blockedError is a batch that waited in vain for one of these accounts: the first that exists. Nothing was done. It does not unwrap to the
// server's error, which CommitOnce would try again.
type blockedError struct {
	accounts []accountKey
	cause    error
}

func (e *blockedError) Error() string {
	return fmt.Sprintf("an account is locked by another session: %v", e.cause)
}

// timedOut reports whether a statement waited too long for a lock.
func timedOut(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "55P03"
}

// held is the accounts that are known to be locked by somebody else.
type held struct {
	mu       sync.Mutex
	accounts map[uuid.UUID]bool // true: a request watches it
	watched  int
	waiting  int
}

// of returns an account that r needs and that is held.
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

// enter reports whether one more request may wait.
func (h *held) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting >= mostHeld {
		return false
	}
	h.waiting++
	return true
}

func (h *held) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting--
}

// watch reports whether the caller is to watch the account. Then unwatch follows.
func (h *held) watch(id uuid.UUID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	watched, found := h.accounts[id]
	if !found || watched || h.watched >= mostWatched {
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

// Await waits until no account that r needs is held by somebody else, for 5 s at most, and reports whether that is so. It is for a request that was
// Busy: submit it again then.
func (p *Processor) Await(ctx context.Context, r Request) bool {
	ctx, cancel := context.WithTimeout(ctx, heldPatience)
	defer cancel()
	if !p.held.enter() {
		return false
	}
	defer p.held.leave()

	for ctx.Err() == nil {
		id, found := p.held.of(r)
		if !found {
			return true
		}
		if p.held.watch(id) {
			free := p.free(ctx, id)
			p.held.unwatch(id, free)
			if free {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(heldPoll):
		}
	}
	return false
}

const lockAccount = `
SELECT FROM accounts WHERE id = $1 FOR NO KEY UPDATE`

// free waits in the row's queue like every transaction, for 200 ms at most, and reports whether its turn came. One that only looked whether
// the row is locked just now would find an account that many pay from locked by one of them, always.
func (p *Processor) free(ctx context.Context, id uuid.UUID) bool {
	ctx = context.WithoutCancel(ctx) // a statement that is cancelled costs its connection
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return false
	}
	defer func() { _ = tx.Rollback(ctx) }()

	var batch pgx.Batch
	batch.Queue(lockPatience)
	batch.Queue(lockAccount, [16]byte(id))
	return tx.SendBatch(ctx, &batch).Close() == nil
}

// By accounts_pkey. Ids of accounts that do not exist are not in it.
const firstAccount = `
SELECT a.id
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN accounts a ON a.id = t.id AND a.tenant_id = t.tenant_id
ORDER BY a.id LIMIT 1`

// hold notes which account a batch waited for.
func (p *Processor) hold(ctx context.Context, blocked *blockedError) error {
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	var id uuid.UUID
	ids, tenants := arraysOf(blocked.accounts)
	if err := tx.QueryRow(ctx, firstAccount, ids, tenants).Scan((*[16]byte)(&id)); err != nil {
		return fmt.Errorf("find the account that is locked (%w): %w", blocked.cause, err)
	}
	p.held.add(id)
	if p.OnHeld != nil {
		p.OnHeld(id)
	}
	return nil
}

// setApart answers those of fresh that need a held account, and returns the others with their places.
func (p *Processor) setApart(fresh []Request, places []int, answers []idempotency.Answer) ([]Request, []int) {
	n := 0
	for i, r := range fresh {
		if _, found := p.held.of(r); found {
			answers[places[i]] = idempotency.Answer{State: idempotency.Busy}
			continue
		}
		fresh[n], places[n] = r, places[i]
		n++
	}
	return fresh[:n], places[:n]
}

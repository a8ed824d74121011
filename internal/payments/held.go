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
// server's error, which Settle would try again.
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
	accounts map[accountKey]bool // true: a request watches it
	watched  int
	waiting  int
}

// of returns an account that r needs and that is held. Another tenant's is not r's: r is refused as ever, and learns nothing.
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
func (h *held) watch(a accountKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	watched, found := h.accounts[a]
	if !found || watched || h.watched >= mostWatched {
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
		a, found := p.held.of(r)
		if !found {
			return true
		}
		if p.held.watch(a) {
			free := p.free(ctx, a)
			p.held.unwatch(a, free)
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

// free waits in the row's queue like every transaction, for 200 ms at most, and reports whether its turn came, or whether only our own
// transactions have the row. One that only looked whether the row is locked just now would find an account that many pay from
// locked by one of them, always.
func (p *Processor) free(ctx context.Context, a accountKey) bool {
	ctx = context.WithoutCancel(ctx) // a statement that is cancelled costs its connection
	if err := p.lock(ctx, a.id); !timedOut(err) {
		return err == nil
	}
	kept, err := p.keptOf(ctx, []accountKey{a})
	return err == nil && len(kept) == 0
}

func (p *Processor) lock(ctx context.Context, id uuid.UUID) error {
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()

	var batch pgx.Batch
	batch.Queue(lockPatience)
	batch.Queue(lockAccount, [16]byte(id))
	return tx.SendBatch(ctx, &batch).Close()
}

// Who keeps the accounts, as far as one can see: a row that is locked or was changed names its transaction
// in xmax, unless several sessions share it. kept is false while that transaction is one of ours
// and at work: it waits for its COMMIT, or did something within the last 200 ms. After 5 s it is
// as good as lost: its instance waits no longer for a COMMIT either.
//
// By accounts_pkey. Ids of accounts that do not exist are not in it.
const findHolders = `
WITH holders AS MATERIALIZED (
    SELECT l.transactionid, coalesce(s.usename <> current_user
        OR s.xact_start < clock_timestamp() - interval '5 s'
        OR s.state <> 'active' AND s.state_change < clock_timestamp() - interval '200 ms', true) AS kept
    FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.granted)
SELECT a.id, a.tenant_id, h.kept
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN accounts a ON a.id = t.id AND a.tenant_id = t.tenant_id
LEFT JOIN holders h ON h.transactionid = a.xmax
ORDER BY a.id`

// hold notes which accounts of a batch that waited in vain are locked by somebody else. It waited for the first one,
// which counts as held if nobody is seen to hold it. The others are held if somebody is: an operator
// may have locked thousands, and learning them one by one would take 200 ms each.
//
// An account that our own transactions have is not held, however slow they are. When every COMMIT waits longer than 200 ms
// for its disk or its standby, the next batch waits for the one before, as it should.
func (p *Processor) hold(ctx context.Context, blocked *blockedError) error {
	kept, err := p.keptOf(ctx, blocked.accounts)
	if err != nil {
		return fmt.Errorf("find the account that is locked (%w): %w", blocked.cause, err)
	}

	for _, a := range kept {
		p.held.add(a)
		if p.OnHeld != nil {
			p.OnHeld(a.id)
		}
	}
	return nil
}

// keptOf returns those of accounts that somebody else keeps locked. The first that exists is one unless our own transactions have it.
func (p *Processor) keptOf(ctx context.Context, accounts []accountKey) (kept []accountKey, err error) {
	tx, err := p.DB.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	ids, tenants := arraysOf(accounts)
	rows, err := tx.Query(ctx, findHolders, ids, tenants) // ForEachRow returns it
	if err != nil {
		return nil, err
	}
	var a accountKey
	var seen *bool
	first := true
	_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&a.id), (*[16]byte)(&a.tenant), &seen}, func() error {
		if seen != nil && *seen || seen == nil && first {
			kept = append(kept, a)
		}
		first = false
		return nil
	})
	return kept, err
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

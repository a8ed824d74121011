package payments

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// All transactions lock payments first and accounts second, both in the order of their ids, so two
// batches that share some cannot deadlock. The LockRows node above the Sort of one SELECT keeps the
// order; sorting in a sub-query, or not at all, deadlocks. NO KEY UPDATE, because no key changes.
// Another tenant's row is neither found nor locked.
const lockPayments = `
SELECT p.tenant_id, ` + paymentColumns + `
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN payments p USING (tenant_id, id)
ORDER BY p.id FOR NO KEY UPDATE OF p`

// When commands about payments are decided: after their locks were granted. A capture that was
// claimed in time, then waited until the time was over, must not succeed after another client was told
// that it is over.
const selectNow = `
SELECT clock_timestamp()`

const lockAccounts = `
SELECT a.id, a.tenant_id, a.kind, a.currency, a.balance_minor, a.held_minor, a.entry_count
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN accounts a ON a.id = t.id AND a.tenant_id = t.tenant_id
ORDER BY a.id FOR NO KEY UPDATE OF a`

// The accounts of payments besides, both where money may move, the source where a hold is released. A
// payment never changes its accounts, so they are right although this statement does not lock the
// payments, and it goes out with lockPayments.
const lockAccountsOfPayments = `
SELECT a.id, a.tenant_id, a.kind, a.currency, a.balance_minor, a.held_minor, a.entry_count
FROM (SELECT * FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
      UNION
      SELECT unnest(CASE WHEN t.moves THEN ARRAY[p.source_account, p.destination_account]
                         ELSE ARRAY[p.source_account] END), p.tenant_id
      FROM unnest($3::uuid[], $4::uuid[], $5::bool[]) t(id, tenant_id, moves)
      JOIN payments p USING (tenant_id, id)) t
JOIN accounts a ON a.id = t.id AND a.tenant_id = t.tenant_id
ORDER BY a.id FOR NO KEY UPDATE OF a`

// Uses accounts_one_system. LIMIT, because a plain join may walk all of that index, which is in the
// order of both.
const findSystemAccounts = `
SELECT a.tenant_id, a.currency
FROM unnest($1::uuid[], $2::text[]) t(tenant_id, currency)
CROSS JOIN LATERAL (
    SELECT tenant_id, currency FROM accounts
    WHERE tenant_id = t.tenant_id AND currency = t.currency AND kind = 'system'
    LIMIT 1) a`

// Uses accounts_one_clearing, as above. The account is not locked: its id and currency never change.
const findClearingAccounts = `
SELECT a.tenant_id, a.currency, a.id
FROM unnest($1::uuid[], $2::text[]) t(tenant_id, currency)
CROSS JOIN LATERAL (
    SELECT tenant_id, currency, id FROM accounts
    WHERE tenant_id = t.tenant_id AND currency = t.currency AND kind = 'clearing'
    LIMIT 1) a`

// The refunds that are to be settled. Their payments are locked, so no other transaction changes them.
const selectRefundsToSettle = `
SELECT r.tenant_id, ` + refundColumns + `
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN refunds r USING (tenant_id, id)`

// load locks and reads everything that rs can touch, in one round trip.
func load(ctx context.Context, tx pgx.Tx, rs []Request) (*books, error) {
	b := &books{
		accounts: map[uuid.UUID]*account{},
		payments: map[rowKey]*Payment{},
		refunded: map[rowKey]*Refund{},
		systems:  map[system]bool{},
		clearing: map[system]uuid.UUID{},
		changed:  map[rowKey]*Payment{},
		touched:  map[uuid.UUID]*account{},
		moving:   map[rowKey]bool{},
		leaving:  map[uuid.UUID]bool{},
	}
	for _, r := range rs {
		if target, ok := targetOf(r.Command); ok && !releases(r.Command) {
			b.moving[rowKey{target.PaymentID, r.TenantID}] = true
		}
	}

	var batch pgx.Batch
	b.queueLocks(&batch, accountsOf(rs), paymentsOf(rs))
	b.queueRefundsToSettle(&batch, rs)
	b.queueSystems(&batch, rs)
	b.queueClearing(&batch, rs)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("load payments and accounts: %w", err)
	}
	for key, p := range b.payments {
		for _, a := range b.accountsOf(key, p) {
			if b.accounts[a.id] == nil {
				return nil, fmt.Errorf("%w: payment %s has lost account %s", ErrDamaged, key.id, a.id)
			}
		}
	}
	return b, nil
}

// rowKey is an account or a payment and the tenant that asks for it.
type rowKey struct{ id, tenant uuid.UUID }

// accountsOf returns the accounts that rs pay from or to, each once, in the order of their ids. A
// payment by card moves nothing yet: it needs its destination only.
func accountsOf(rs []Request) []rowKey {
	var wanted []rowKey
	for _, r := range rs {
		if c, ok := r.Command.(CreatePayment); ok {
			wanted = append(wanted, rowKey{c.DestinationAccount, r.TenantID})
			if c.Card == "" {
				wanted = append(wanted, rowKey{c.SourceAccount, r.TenantID})
			}
		}
	}
	return sorted(wanted)
}

// paymentsOf returns the payments that rs are about, each once, in the order of their ids.
func paymentsOf(rs []Request) []rowKey {
	var wanted []rowKey
	for _, r := range rs {
		if target, ok := targetOf(r.Command); ok {
			wanted = append(wanted, rowKey{target.PaymentID, r.TenantID})
		}
	}
	return sorted(wanted)
}

func sorted(keys []rowKey) []rowKey {
	slices.SortFunc(keys, func(x, y rowKey) int {
		if c := slices.Compare(x.id[:], y.id[:]); c != 0 {
			return c
		}
		return slices.Compare(x.tenant[:], y.tenant[:])
	})
	return slices.Compact(keys)
}

// queueLocks adds the statements that lock rows to the batch, with a short timeout of their own, and
// first the one that finds the tenants that leave.
func (b *books) queueLocks(batch *pgx.Batch, accounts, payments []rowKey) {
	if len(accounts)+len(payments) == 0 {
		batch.Queue(selectMoves).QueryRow(b.addMoves)
		return
	}

	batch.Queue(selectMovesWithPatience).QueryRow(b.addMoves)
	ids, tenants := arraysOf(accounts)
	if len(payments) == 0 {
		batch.Queue(lockAccounts, ids, tenants).Query(b.addAccounts(accounts))
	} else {
		paymentIDs, owners := arraysOf(payments)
		batch.Queue(lockPayments, paymentIDs, owners).Query(b.addPayments(payments))
		batch.Queue(selectNow).QueryRow(func(row pgx.Row) error { return row.Scan(&b.now) })
		moves := make([]bool, len(payments))
		for i, key := range payments {
			moves[i] = b.moving[key]
		}
		batch.Queue(lockAccountsOfPayments, ids, tenants, paymentIDs, owners, moves).
			Query(b.addAccounts(accounts))
	}
	batch.Queue(lockDefault)
}

// addPayments puts the rows of lockPayments into b.payments.
func (b *books) addPayments(wanted []rowKey) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var last rowKey
		for rows.Next() {
			p := &Payment{}
			if err := rows.Scan(append([]any{&last.tenant}, p.columns()...)...); err != nil {
				return err
			}
			p.read()
			last.id = p.ID
			b.payments[last] = p
		}

		// A row is sent once it is locked, so the locked one comes after the last row received.
		if err := rows.Err(); timedOut(err) {
			return &blockedError{payments: wanted[notAfter(wanted, last.id):], cause: err}
		}
		return rows.Err()
	}
}

// addAccounts puts the rows of lockAccounts into b.accounts.
func (b *books) addAccounts(wanted []rowKey) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var last uuid.UUID
		for rows.Next() {
			a := &account{}
			err := rows.Scan((*[16]byte)(&a.ID), (*[16]byte)(&a.tenantID), (*string)(&a.Kind),
				&a.Currency, &a.BalanceMinor, &a.HeldMinor, &a.entryCount)
			if err != nil {
				return err
			}
			b.accounts[a.ID], last = a, a.ID
		}

		if err := rows.Err(); timedOut(err) {
			for key, p := range b.payments { // which came before
				wanted = append(wanted, b.accountsOf(key, p)...)
			}
			wanted = sorted(wanted)
			return &blockedError{accounts: wanted[notAfter(wanted, last):], cause: err}
		}
		return rows.Err()
	}
}

// accountsOf returns the accounts that the commands about p lock.
func (b *books) accountsOf(key rowKey, p *Payment) []rowKey {
	accounts := []rowKey{{p.SourceAccount, key.tenant}, {p.DestinationAccount, key.tenant}}
	if !b.moving[key] {
		return accounts[:1]
	}
	return accounts
}

// queueSystems adds findSystemAccounts to the batch if rs open system accounts; its rows go into
// b.systems.
func (b *books) queueSystems(batch *pgx.Batch, rs []Request) {
	var tenants [][16]byte
	var currencies []string
	for _, r := range rs {
		if c, ok := r.Command.(CreateAccount); ok && c.Kind == System {
			tenants, currencies = append(tenants, r.TenantID), append(currencies, c.Currency)
		}
	}
	if len(tenants) == 0 {
		return
	}

	batch.Queue(findSystemAccounts, tenants, currencies).Query(func(rows pgx.Rows) error {
		var s system
		_, err := pgx.ForEachRow(rows, []any{&s.tenant, &s.currency}, func() error {
			b.systems[s] = true
			return nil
		})
		return err
	})
}

// queueClearing adds findClearingAccounts to the batch if rs pay by card or open clearing accounts;
// its rows go into b.clearing.
func (b *books) queueClearing(batch *pgx.Batch, rs []Request) {
	var tenants [][16]byte
	var currencies []string
	for _, r := range rs {
		switch c := r.Command.(type) {
		case CreatePayment:
			if c.Card != "" {
				tenants, currencies = append(tenants, r.TenantID), append(currencies, c.Currency)
			}
		case CreateAccount:
			if c.Kind == Clearing {
				tenants, currencies = append(tenants, r.TenantID), append(currencies, c.Currency)
			}
		}
	}
	if len(tenants) == 0 {
		return
	}

	batch.Queue(findClearingAccounts, tenants, currencies).Query(func(rows pgx.Rows) error {
		var s system
		var id uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&s.tenant, &s.currency, &id}, func() error {
			b.clearing[s] = id
			return nil
		})
		return err
	})
}

// queueRefundsToSettle adds selectRefunds to the batch if rs settle some; its rows go into b.refunded.
func (b *books) queueRefundsToSettle(batch *pgx.Batch, rs []Request) {
	var wanted []rowKey
	for _, r := range rs {
		if c, ok := r.Command.(settlePayment); ok && c.RefundID != nil {
			wanted = append(wanted, rowKey{*c.RefundID, r.TenantID})
		}
	}
	if len(wanted) == 0 {
		return
	}

	ids, tenants := arraysOf(wanted)
	batch.Queue(selectRefundsToSettle, ids, tenants).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var tenant uuid.UUID
			r := &Refund{}
			if err := rows.Scan(append([]any{&tenant}, r.columns()...)...); err != nil {
				return err
			}
			r.read()
			b.refunded[rowKey{r.ID, tenant}] = r
		}
		return rows.Err()
	})
}

// arraysOf returns the ids and their tenants as Postgres takes them.
func arraysOf(keys []rowKey) (ids, tenants [][16]byte) {
	ids, tenants = make([][16]byte, len(keys)), make([][16]byte, len(keys))
	for i, k := range keys {
		ids[i], tenants[i] = k.id, k.tenant
	}
	return ids, tenants
}

// notAfter returns how many of the keys, which are sorted, do not come after id.
func notAfter(keys []rowKey, id uuid.UUID) int {
	return sort.Search(len(keys), func(i int) bool {
		return slices.Compare(keys[i].id[:], id[:]) > 0
	})
}

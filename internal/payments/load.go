package payments

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The rows are locked in the order of their ids, by the LockRows node above the Sort of this one
// SELECT, so two batches that share accounts cannot deadlock. Sorting in a sub-query, or not at
// all, deadlocks. NO KEY UPDATE, because no key changes. Another tenant's account is neither found
// nor locked.
const lockAccounts = `
SELECT a.id, a.tenant_id, a.kind, a.currency, a.balance_minor, a.entry_count
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
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

// load locks and reads everything that rs can touch, in one round trip.
func load(ctx context.Context, tx pgx.Tx, rs []Request) (*books, error) {
	b := &books{
		accounts: map[uuid.UUID]*account{},
		systems:  map[system]bool{},
		touched:  map[uuid.UUID]*account{},
	}

	var batch pgx.Batch
	if wanted := accountsOf(rs); len(wanted) > 0 {
		b.queueLock(&batch, wanted)
	}
	b.queueSystems(&batch, rs)
	if batch.Len() == 0 {
		return b, nil
	}

	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("load accounts: %w", err)
	}
	return b, nil
}

type accountKey struct{ id, tenant uuid.UUID }

// accountsOf returns the accounts that rs pay from or to, each once, in the order of their ids.
func accountsOf(rs []Request) []accountKey {
	var wanted []accountKey
	for _, r := range rs {
		if c, ok := r.Command.(CreatePayment); ok {
			wanted = append(wanted,
				accountKey{c.SourceAccount, r.TenantID},
				accountKey{c.DestinationAccount, r.TenantID})
		}
	}

	slices.SortFunc(wanted, func(x, y accountKey) int {
		if c := slices.Compare(x.id[:], y.id[:]); c != 0 {
			return c
		}
		return slices.Compare(x.tenant[:], y.tenant[:])
	})
	return slices.Compact(wanted)
}

// queueLock adds lockAccounts to the batch, with a short timeout of its own; its rows go into
// b.accounts.
func (b *books) queueLock(batch *pgx.Batch, wanted []accountKey) {
	ids, tenants := arraysOf(wanted)
	batch.Queue(lockPatience)
	batch.Queue(lockAccounts, ids, tenants).Query(func(rows pgx.Rows) error {
		var last uuid.UUID
		for rows.Next() {
			a := &account{}
			err := rows.Scan((*[16]byte)(&a.ID), (*[16]byte)(&a.tenantID), (*string)(&a.Kind),
				&a.Currency, &a.BalanceMinor, &a.entryCount)
			if err != nil {
				return err
			}
			b.accounts[a.ID], last = a, a.ID
		}

		// A row is sent once it is locked, so the locked account comes after the last row received.
		if err := rows.Err(); timedOut(err) {
			return &blockedError{wanted[notAfter(wanted, last):], err}
		}
		return rows.Err()
	})
	batch.Queue(lockDefault)
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

// arraysOf returns the ids and their tenants as Postgres takes them.
func arraysOf(accounts []accountKey) (ids, tenants [][16]byte) {
	for _, a := range accounts {
		ids, tenants = append(ids, a.id), append(tenants, a.tenant)
	}
	return ids, tenants
}

// notAfter returns how many of the accounts, which are sorted, do not come after id.
func notAfter(accounts []accountKey, id uuid.UUID) int {
	return sort.Search(len(accounts), func(i int) bool {
		return slices.Compare(accounts[i].id[:], id[:]) > 0
	})
}

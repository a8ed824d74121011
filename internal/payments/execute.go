package payments

import (
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The rows are locked in the order of their ids, by the LockRows node above the Sort of this one SELECT, so two batches
// that share accounts never wait for each other in a circle. Sorting in a sub-query, or not at all, deadlocks. NO KEY
// UPDATE, because no key changes. An account of another tenant is not found, and not locked.
const lockAccounts = `
SELECT a.id, a.tenant_id, a.kind, a.currency, a.balance_minor, a.entry_count
FROM unnest($1::uuid[], $2::uuid[]) t(id, tenant_id)
JOIN accounts a ON a.id = t.id AND a.tenant_id = t.tenant_id
ORDER BY a.id FOR NO KEY UPDATE OF a`

// By accounts_one_system. LIMIT, because a plain join may walk all of that index, which is in the order of both.
const findSystemAccounts = `
SELECT a.tenant_id, a.currency
FROM unnest($1::uuid[], $2::text[]) t(tenant_id, currency)
CROSS JOIN LATERAL (
    SELECT tenant_id, currency FROM accounts
    WHERE tenant_id = t.tenant_id AND currency = t.currency AND kind = 'system'
    LIMIT 1) a`

// Execute does what rs ask for in the caller's transaction: it loads and locks the accounts, decides one request after the
// other in memory, each on what the ones before left behind, and saves the result. One outcome per request, in order. A
// refusal is an outcome; an error means that the transaction must be rolled back.
//
// It costs two round trips and at most eight statements, whatever the length of rs.
func Execute(ctx context.Context, tx pgx.Tx, rs []Request) ([]Outcome, error) {
	b, err := load(ctx, tx, rs)
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(rs))
	for i, r := range rs {
		outcomes[i] = b.apply(r)
	}
	return outcomes, b.save(ctx, tx)
}

// books is what the commands of one batch can see, and what they did.
type books struct {
	accounts map[uuid.UUID]*account
	systems  map[system]bool // tenants' currencies that have a system account

	opened  []*account
	payers  []Request // the request of each payment
	paid    []*Payment
	entries []entry
	touched map[uuid.UUID]*account
}

type system struct {
	tenant   uuid.UUID
	currency string
}

type accountKey struct{ id, tenant uuid.UUID }

// apply decides r and takes note of the result.
func (b *books) apply(r Request) Outcome {
	switch c := r.Command.(type) {
	case CreateAccount:
		s := system{r.TenantID, c.Currency}
		if c.Kind == System && b.systems[s] {
			return Outcome{Refusal: &Refusal{Code: SystemExists}}
		}
		a := &account{tenantID: r.TenantID, Account: Account{
			ID: newID(r.At), Currency: c.Currency, Kind: c.Kind, Name: c.Name, CreatedAt: r.At,
		}}
		b.opened, b.accounts[a.ID] = append(b.opened, a), a
		b.systems[s] = b.systems[s] || c.Kind == System
		opened := a.Account
		return Outcome{Account: &opened}
	case CreatePayment:
		source, destination := b.of(r, c.SourceAccount), b.of(r, c.DestinationAccount)
		payment, entries, refusal := decidePayment(newID(r.At), r.At, c, source, destination)
		if payment != nil {
			b.paid, b.payers = append(b.paid, payment), append(b.payers, r)
		}
		for _, e := range entries {
			a := b.accounts[e.accountID]
			a.BalanceMinor, a.entryCount = e.BalanceAfterMinor, e.number
			b.touched[a.ID] = a
		}
		b.entries = append(b.entries, entries...)
		return Outcome{Payment: payment, Refusal: refusal}
	}
	panic(fmt.Sprintf("payments: command of unknown type %T", r.Command)) // sealed: cannot happen
}

// of returns the account id of the tenant that asks; nil: it has none.
func (b *books) of(r Request, id uuid.UUID) *account {
	if a := b.accounts[id]; a != nil && a.tenantID == r.TenantID {
		return a
	}
	return nil
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
	return sort.Search(len(accounts), func(i int) bool { return slices.Compare(accounts[i].id[:], id[:]) > 0 })
}

// load reads and locks everything that rs can touch, in one round trip.
func load(ctx context.Context, tx pgx.Tx, rs []Request) (*books, error) {
	b := &books{accounts: map[uuid.UUID]*account{}, systems: map[system]bool{}, touched: map[uuid.UUID]*account{}}
	var wanted []accountKey
	var systemTenants [][16]byte
	var systemCurrencies []string
	for _, r := range rs {
		switch c := r.Command.(type) {
		case CreatePayment:
			wanted = append(wanted, accountKey{c.SourceAccount, r.TenantID}, accountKey{c.DestinationAccount, r.TenantID})
		case CreateAccount:
			if c.Kind == System {
				systemTenants, systemCurrencies = append(systemTenants, r.TenantID), append(systemCurrencies, c.Currency)
			}
		}
	}
	slices.SortFunc(wanted, func(x, y accountKey) int {
		if c := slices.Compare(x.id[:], y.id[:]); c != 0 {
			return c
		}
		return slices.Compare(x.tenant[:], y.tenant[:])
	})
	wanted = slices.Compact(wanted)

	var batch pgx.Batch
	if len(wanted) > 0 {
		ids, tenants := arraysOf(wanted)
		batch.Queue(lockPatience)
		batch.Queue(lockAccounts, ids, tenants).Query(func(rows pgx.Rows) error {
			var last uuid.UUID
			for rows.Next() {
				a := &account{}
				if err := rows.Scan((*[16]byte)(&a.ID), (*[16]byte)(&a.tenantID), (*string)(&a.Kind), &a.Currency, &a.BalanceMinor, &a.entryCount); err != nil {
					return err
				}
				b.accounts[a.ID], last = a, a.ID
			}
			// A row is sent when it is locked, so the one that was waited for comes after the last one that was sent.
			if err := rows.Err(); timedOut(err) {
				return &blockedError{wanted[notAfter(wanted, last):], err}
			}
			return rows.Err()
		})
		batch.Queue(lockDefault)
	}
	if len(systemTenants) > 0 {
		batch.Queue(findSystemAccounts, systemTenants, systemCurrencies).Query(func(rows pgx.Rows) error {
			var s system
			_, err := pgx.ForEachRow(rows, []any{&s.tenant, &s.currency}, func() error {
				b.systems[s] = true
				return nil
			})
			return err
		})
	}
	if batch.Len() == 0 {
		return b, nil
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("load accounts: %w", err)
	}
	return b, nil
}

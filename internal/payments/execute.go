package payments

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Execute does what rs ask for in the caller's transaction. It locks and loads the accounts,
// decides the requests one after the other in memory, each on what the ones before left behind, and
// saves the result. It returns one outcome per request, in order. A refusal is an outcome; an error
// means that the transaction must be rolled back.
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

// books is what the commands of one batch see, and what they did.
type books struct {
	accounts map[uuid.UUID]*account
	systems  map[system]bool // the tenants and currencies that have a system account

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

// apply decides r and records the result.
func (b *books) apply(r Request) Outcome {
	switch c := r.Command.(type) {
	case CreateAccount:
		return b.openAccount(r, c)
	case CreatePayment:
		return b.pay(r, c)
	}
	panic(fmt.Sprintf("payments: command of unknown type %T", r.Command)) // sealed: cannot happen
}

func (b *books) openAccount(r Request, c CreateAccount) Outcome {
	s := system{r.TenantID, c.Currency}
	if c.Kind == System && b.systems[s] {
		return Outcome{Refusal: &Refusal{Code: SystemExists}}
	}

	a := &account{tenantID: r.TenantID, Account: Account{
		ID: newID(r.At), Currency: c.Currency, Kind: c.Kind, Name: c.Name, CreatedAt: r.At,
	}}
	b.opened, b.accounts[a.ID] = append(b.opened, a), a
	b.systems[s] = b.systems[s] || c.Kind == System

	opened := a.Account // a copy: later requests of the batch may change the balance
	return Outcome{Account: &opened}
}

func (b *books) pay(r Request, c CreatePayment) Outcome {
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

// of returns the account id of the tenant that asks, or nil.
func (b *books) of(r Request, id uuid.UUID) *account {
	if a := b.accounts[id]; a != nil && a.tenantID == r.TenantID {
		return a
	}
	return nil
}

package payments

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Execute does what rs ask for in the caller's transaction. It locks and loads the payments and
// accounts, decides the requests one after the other in memory, each on what the ones before left
// behind, and saves the result. It returns one outcome per request, in order. A refusal is an
// outcome; an error means that the transaction must be rolled back.
//
// A command about a payment is dated here, in rs, when its payment is locked.
//
// It costs two round trips and at most thirteen statements, whatever the length of rs.
func Execute(ctx context.Context, tx pgx.Tx, rs []Request) ([]Outcome, error) {
	b, err := load(ctx, tx, rs)
	if err != nil {
		return nil, err
	}

	outcomes := make([]Outcome, len(rs))
	for i := range rs {
		if _, ok := targetOf(rs[i].Command); ok {
			rs[i].At = b.now.UTC().Truncate(time.Millisecond)
		}
		outcomes[i] = b.apply(&rs[i])
		if err := outcomes[i].encode(); err != nil {
			return nil, err
		}
	}

	return outcomes, b.save(ctx, tx)
}

// books is what the commands of one batch see, and what they did.
type books struct {
	accounts map[uuid.UUID]*account
	payments map[rowKey]*Payment
	moving   map[rowKey]bool // the payments whose money may move: both of their accounts are there
	systems  map[system]bool // the tenants and currencies that have a system account
	now      time.Time       // after the payments were locked, if there are any

	opened   []*account
	created  []change
	changed  map[rowKey]*Payment // as the last command left it
	commands []change            // the commands that changed a payment
	refunds  []refunded
	entries  []entry
	touched  map[uuid.UUID]*account
}

type system struct {
	tenant   uuid.UUID
	currency string
}

// change is a payment as a request left it.
type change struct {
	*Request
	*Payment
}

type refunded struct {
	*Request
	*Refund
}

// apply decides r and records the result.
func (b *books) apply(r *Request) Outcome {
	if c, ok := r.Command.(CreateAccount); ok {
		return b.openAccount(r, c)
	}

	d := decide(b.stateOf(r), r.Command, newID(r.At), r.At)
	b.record(r, d)
	if d.refund != nil {
		return Outcome{Refund: d.refund, Refusal: d.refusal}
	}
	return Outcome{Payment: d.payment, Refusal: d.refusal}
}

func (b *books) openAccount(r *Request, c CreateAccount) Outcome {
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

// stateOf returns what r depends on, as far as it is the tenant's.
func (b *books) stateOf(r *Request) state {
	if c, ok := r.Command.(CreatePayment); ok {
		return state{nil, b.of(r, c.SourceAccount), b.of(r, c.DestinationAccount)}
	}

	target, _ := targetOf(r.Command)
	p := b.payments[rowKey{target.PaymentID, r.TenantID}]
	if p == nil {
		return state{}
	}
	return state{p, b.of(r, p.SourceAccount), b.of(r, p.DestinationAccount)}
}

// of returns the account id of the tenant that asks, or nil.
func (b *books) of(r *Request, id uuid.UUID) *account {
	if a := b.accounts[id]; a != nil && a.tenantID == r.TenantID {
		return a
	}
	return nil
}

// record takes over what was decided, for the next requests and for save.
func (b *books) record(r *Request, d decision) {
	p := d.payment
	if p == nil {
		return
	}

	if p.Version == 1 {
		b.created = append(b.created, change{r, p})
	} else {
		key := rowKey{p.ID, r.TenantID}
		b.payments[key], b.changed[key] = p, p
		b.commands = append(b.commands, change{r, p})
	}
	if d.refund != nil {
		b.refunds = append(b.refunds, refunded{r, d.refund})
	}

	if d.held != 0 {
		source := b.accounts[p.SourceAccount]
		source.HeldMinor += d.held
		b.touched[source.ID] = source
	}
	for _, e := range d.entries {
		a := b.accounts[e.accountID]
		a.BalanceMinor, a.entryCount = e.BalanceAfterMinor, e.number
		b.touched[a.ID] = a
	}
	b.entries = append(b.entries, d.entries...)
}

// encode makes the JSON form of what the outcome holds.
func (o *Outcome) encode() (err error) {
	switch {
	case o.Account != nil:
		o.JSON, err = json.Marshal(o.Account)
	case o.Payment != nil:
		o.JSON, err = json.Marshal(o.Payment)
	case o.Refund != nil:
		o.JSON, err = json.Marshal(o.Refund)
	}
	if err != nil {
		err = fmt.Errorf("encode outcome: %w", err)
	}
	return err
}

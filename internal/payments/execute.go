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
// It costs two round trips and at most seventeen statements, whatever the length of rs.
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
		if b.leaves(&rs[i]) {
			outcomes[i] = Outcome{moving: true}
			continue
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
	refunded map[rowKey]*Refund   // the refunds that are to be settled
	moving   map[rowKey]bool      // the payments whose money may move: both of their accounts are there
	systems  map[system]bool      // the tenants and currencies that have a system account
	clearing map[system]uuid.UUID // their clearing accounts, which are not locked
	leaving  map[uuid.UUID]bool   // tenants that leave for another cluster
	now      time.Time            // after the payments were locked, if there are any

	opened   []*account
	created  []change
	changed  map[rowKey]*Payment // as the last command left it
	commands []change            // the commands that changed a payment
	refunds  []refunded
	settled  []refunded
	asked    []asked
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

// asked is an operation that a request led to.
type asked struct {
	*Request
	*Operation
}

// apply decides r and records the result.
func (b *books) apply(r *Request) Outcome {
	if c, ok := r.Command.(CreateAccount); ok {
		return b.openAccount(r, c)
	}

	d := decide(b.stateOf(r), r.Command, newID(r.At), r.At)
	b.record(r, d)
	o := Outcome{Refund: d.refund, Refusal: d.refusal}
	if d.refund == nil {
		o.Payment = d.payment
	}
	if d.payment != nil {
		o.version = d.payment.Version
	}
	return o
}

func (b *books) openAccount(r *Request, c CreateAccount) Outcome {
	s := system{r.TenantID, c.Currency}
	_, cleared := b.clearing[s]
	switch {
	case c.Kind == System && b.systems[s]:
		return Outcome{Refusal: &Refusal{Code: SystemExists}}
	case c.Kind == Clearing && cleared:
		return Outcome{Refusal: &Refusal{Code: ClearingExists}}
	}

	a := &account{tenantID: r.TenantID, Account: Account{
		ID: newID(r.At), Currency: c.Currency, Kind: c.Kind, Name: c.Name, CreatedAt: r.At,
	}}
	b.opened, b.accounts[a.ID] = append(b.opened, a), a
	b.systems[s] = b.systems[s] || c.Kind == System
	if c.Kind == Clearing {
		b.clearing[s] = a.ID
	}

	opened := a.Account // a copy: later requests of the batch may change the balance
	return Outcome{Account: &opened}
}

// stateOf returns what r depends on, as far as it is the tenant's.
func (b *books) stateOf(r *Request) state {
	if c, ok := r.Command.(CreatePayment); ok {
		s := state{source: b.of(r, c.SourceAccount), destination: b.of(r, c.DestinationAccount)}
		if c.Card != "" {
			s.source = b.clearingAccount(r, c.Currency)
		}
		return s
	}

	target, _ := targetOf(r.Command)
	p := b.payments[rowKey{target.PaymentID, r.TenantID}]
	if p == nil {
		return state{}
	}
	s := state{payment: p, source: b.of(r, p.SourceAccount), destination: b.of(r, p.DestinationAccount)}
	if c, ok := r.Command.(settlePayment); ok && c.RefundID != nil {
		s.refund = b.refunded[rowKey{*c.RefundID, r.TenantID}]
	}
	return s
}

// clearingAccount returns the tenant's account for money that comes by card, or nil. Nothing moves
// yet, so its balance is not there.
func (b *books) clearingAccount(r *Request, currency string) *account {
	id, found := b.clearing[system{r.TenantID, currency}]
	if !found {
		return nil
	}
	return &account{tenantID: r.TenantID, Account: Account{ID: id, Kind: Clearing, Currency: currency}}
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
	switch {
	case d.refund == nil:
	case d.refund.SettledAt == nil:
		b.refunds = append(b.refunds, refunded{r, d.refund})
	default:
		b.refunded[rowKey{d.refund.ID, r.TenantID}] = d.refund
		b.settled = append(b.settled, refunded{r, d.refund})
	}
	if d.asked != nil {
		b.asked = append(b.asked, asked{r, d.asked})
	}

	if d.held != 0 {
		d.holder.HeldMinor += d.held
		b.touched[d.holder.ID] = d.holder
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

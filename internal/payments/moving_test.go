package payments_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// leaves notes that the bank leaves for another cluster, until stays is called.
func (b *bank) leaves(t *testing.T) (stays func()) {
	t.Helper()
	exec := func(query string) {
		t.Helper()
		if _, err := b.owner.Exec(t.Context(), query, b.tenant); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO tenants (id, name) VALUES ($1, 'leaves')`)
	exec(`INSERT INTO tenant_moves (tenant_id, target) VALUES ($1, '')`)
	return func() { exec(`DELETE FROM tenant_moves WHERE tenant_id = $1`) }
}

// A request of a tenant that leaves is not executed and leaves nothing behind. Others of its batch are.
func TestTenantThatLeavesIsNotServed(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	from, to := b.customer(t, 100), b.customer(t, 0)
	before, hold := b.pay(from, to, 1), b.authorize(from, to, 1, time.Hour)
	first := b.process(t, before)[0]
	held := made(t, b.process(t, hold))[0]

	other := *b
	other.tenant = uuid.New()
	stays := b.leaves(t)
	rs := []payments.Request{
		b.pay(from, to, 1), before, b.authorize(from, to, 1, time.Hour), b.capture(held), b.cancel(held),
		b.byCard(to, 1), b.request(payments.CreateAccount{Kind: payments.Customer, Currency: "USD"}),
		other.request(payments.CreateAccount{Kind: payments.Customer, Currency: "USD"}),
	}
	const written = `SELECT (SELECT count(*) FROM payments) + (SELECT count(*) FROM ledger_entries)
		+ (SELECT count(*) FROM outbox_events) + (SELECT count(*) FROM idempotency_keys) + (SELECT count(*) FROM accounts)`
	rows := count(t, b.owner, written)
	as := b.process(t, rs...)
	for i, a := range as {
		want := idempotency.Moving
		switch i {
		case 1:
			want = idempotency.Replay
		case 7:
			want = idempotency.New
		}
		if a.State != want {
			t.Errorf("request %d is %s, want %s", i, a.State, want)
		}
	}
	if string(as[1].Response.Body) != string(first.Response.Body) {
		t.Errorf("the replay is %s", as[1].Response.Body)
	}
	if n := count(t, b.owner, written) - rows; n != 3 { // the other's account, event and key
		t.Errorf("%d rows were written", n)
	}

	stays()
	for i, a := range b.process(t, rs[0], rs[3], rs[6]) {
		if a.State != idempotency.New || a.Response.Status > 201 {
			t.Errorf("request %d of one that stays: %s %d", i, a.State, a.Response.Status)
		}
	}
	b.wantBalanced(t)
}

// What is with the PSP ends here. Holds do not expire here any more.
func TestTenantThatLeavesComesToRest(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	from, to := b.customer(t, 100), b.customer(t, 0)
	wantStatus(t, b.process(t, b.byCard(to, 5))[0], 201)
	b.authorized(t, 1, from, to, time.Millisecond)
	for count(t, b.owner, `SELECT count(*) FROM payments WHERE authorization_expires_at > now()`) > 0 {
		continue // a millisecond
	}

	stays := b.leaves(t)
	if n, err := b.ExpireBatch(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("%d holds were released, %v", n, err)
	}
	b.wantOverdue(t, 0) // a worker is not in alarm for good about what it must not release
	o := b.claimed(t, 1)[0]
	b.record(t, payments.Applied, payments.Result{
		OperationID: o.ID, State: payments.Succeeded, AmountMinor: 5, Currency: "USD", Reference: "ch_1",
	})
	if n := b.balance(t, to); n != 5 {
		t.Errorf("the account has %d", n)
	}

	stays()
	b.wantOverdue(t, 1)
	if n, err := b.ExpireBatch(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("%d holds were released, %v", n, err)
	}
}

// Only a database that was restored has something open of a tenant that has left. It has gone on in
// the next cluster: a call from here could charge twice.
func TestNothingIsChargedForATenantThatHasLeft(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	to := b.customer(t, 0)
	operation := b.chargeOf(t, b.charges(t, 1, to)[0])

	stays := b.leaves(t)
	if _, err := b.owner.Exec(t.Context(), `UPDATE tenant_moves SET state = 'left'`); err != nil {
		t.Fatal(err)
	}
	b.claimed(t, 0)
	b.record(t, payments.NoOperation, succeeded(operation))
	if w, err := payments.CountWaiting(t.Context(), b.owner); err != nil || w.Pending != 0 || w.Oldest != 0 {
		t.Errorf("%+v, %v: a worker is in alarm about what it must not send", w, err)
	}
	b.wantBalanced(t)

	stays()
	b.claimed(t, 1)
}

func (b *bank) wantOverdue(t *testing.T, want int64) {
	t.Helper()
	age, err := payments.OldestOverdue(t.Context(), b.owner)
	if err != nil || (age > 0) != (want > 0) {
		t.Errorf("the oldest is overdue for %s, %v; want %d", age, err, want)
	}
	n, first, err := payments.CountOverdue(t.Context(), b.owner)
	if err != nil || n != want || first.IsZero() != (want == 0) {
		t.Errorf("%d are overdue since %s, %v; want %d", n, first, err, want)
	}
}

func TestStays(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	check := func() error {
		return pgx.BeginTxFunc(t.Context(), b.DB, pgx.TxOptions{}, func(tx pgx.Tx) error {
			return payments.Stays(t.Context(), tx, b.tenant)
		})
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	b.leaves(t)
	if err := check(); !errors.Is(err, payments.ErrMoving) {
		t.Error(err)
	}
}

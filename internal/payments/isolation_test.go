package payments_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestReplaysKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	from, to := b.customer(t, 100), b.customer(t, 0)
	done, reused := b.pay(from, to, 1), b.pay(from, to, 2)
	reused.Key = done.Key
	first := b.process(t, done)[0]

	as := b.process(t, done, reused, b.pay(from, to, 4), b.pay(from, to, 1000))

	var states []string
	for _, a := range as {
		states = append(states, a.State.String())
	}
	if diff := cmp.Diff([]string{"replay", "mismatch", "new", "new"}, states); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff(first.Response, as[0].Response); diff != "" {
		t.Error(diff)
	}
	if p := decode[payments.Payment](t, as[2]); p.AmountMinor != 4 {
		t.Errorf("the payment of 4 is answered by %s", as[2].Response.Body)
	}
	wantStatus(t, as[3], 402)
	if got := b.balance(t, to); got != 5 {
		t.Errorf("balance %d, want 5", got)
	}
	b.wantBalanced(t)
}

func TestForeignAccountIsNotLocked(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stranger := &bank{Processor: b.Processor, owner: b.owner, tenant: uuid.New(), client: b.client}
	theirs, mine := b.customer(t, 100), stranger.open(t, payments.Customer, "USD")
	holder, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	if _, err := holder.Exec(t.Context(), `SELECT FROM accounts WHERE id = $1 FOR UPDATE`, theirs); err != nil {
		t.Fatal(err)
	}

	as, err := stranger.Process(soon(t), []payments.Request{stranger.pay(theirs, mine, 1)})
	if err != nil {
		t.Fatal("waits for another tenant's account:", err)
	}
	wantStatus(t, as[0], 422)
}

func TestSystemAccountsAreOpenedInOneOrder(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	open := func(tx pgx.Tx, currency string) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO accounts (id, tenant_id, kind, currency) VALUES (gen_random_uuid(), $1, 'system', $2)`, b.tenant, currency)
		return err
	}
	holder, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context()))
	if err := open(holder, "CAD"); err != nil {
		t.Fatal(err)
	}

	done := make(chan error, 1)
	rs := []payments.Request{
		b.request(payments.CreateAccount{Kind: payments.System, Currency: "EUR"}),
		b.request(payments.CreateAccount{Kind: payments.System, Currency: "CAD"}),
	}
	go func() {
		_, err := b.Process(soon(t), rs)
		done <- err
	}()
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := count(t, b.owner, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`); n != 1 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})

	// It waits for the first one, and so must not have opened the second one yet.
	undone := errors.New("undone")
	err = pgx.BeginFunc(t.Context(), b.owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '2s'`); err != nil {
			return err
		}
		return errors.Join(open(tx, "EUR"), undone)
	})
	if !errors.Is(err, undone) || err.Error() != undone.Error() {
		t.Error(err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package payments_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestReplaysInABatchKeepTheirPlaces(t *testing.T) {
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

// lockRows holds the rows of accounts until the test ends.
func (b *bank) lockRows(t *testing.T, accounts ...uuid.UUID) pgx.Tx {
	t.Helper()
	holder, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Rollback(context.Background()) })
	if _, err := holder.Exec(t.Context(), `SELECT FROM accounts WHERE id = ANY ($1) FOR UPDATE`, accounts); err != nil {
		t.Fatal(err)
	}
	return holder
}

// The system account is in neither payment: it would put all batches in a row, whatever the order behind it.
func TestAccountsAreLockedInOneOrder(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	accounts := []uuid.UUID{b.customer(t, 100), b.customer(t, 100)}
	slices.SortFunc(accounts, func(x, y uuid.UUID) int { return slices.Compare(x[:], y[:]) })
	low, high := accounts[0], accounts[1]
	wantStatus(t, b.process(t, b.pay(high, low, 50))[0], 201) // the order of balances is another one

	for _, rs := range [][]payments.Request{
		{b.pay(low, high, 1)}, {b.pay(high, low, 1)}, {b.pay(high, low, 1), b.pay(low, high, 1)},
	} {
		holder, paid := b.lockRows(t, low), make(chan error, 1)
		go func() {
			_, err := b.Process(soon(t), rs)
			paid <- err
		}()
		testenv.Eventually(t, 20*time.Second, func() error {
			if n := count(t, b.owner, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`); n != 1 {
				return fmt.Errorf("%d wait", n)
			}
			return nil
		})

		// It waits for the lower one, and so must not hold the higher one yet.
		if _, err := b.owner.Exec(t.Context(), `SELECT FROM accounts WHERE id = $1 FOR UPDATE NOWAIT`, high); err != nil {
			t.Error(err)
		}
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-paid; err != nil {
			t.Error(err)
		}
	}
	b.wantBalanced(t)
}

func TestAForeignAccountIsNotLocked(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	stranger := &bank{Processor: b.Processor, owner: b.owner, tenant: uuid.New(), client: b.client}
	theirs, mine := b.customer(t, 100), stranger.open(t, payments.Customer, "USD")
	b.lockRows(t, theirs)

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	as, err := stranger.Process(ctx, []payments.Request{stranger.pay(theirs, mine, 1)})
	if err != nil {
		t.Fatal("waits for another tenant's account:", err)
	}
	wantStatus(t, as[0], 422)
}

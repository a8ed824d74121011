package payments_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// charges makes n payments by card of 10 each, which are processing.
func (b *bank) charges(t testing.TB, n int, to uuid.UUID) []uuid.UUID {
	t.Helper()
	var rs []payments.Request
	for range n {
		rs = append(rs, b.byCard(to, 10))
	}
	return made(t, b.process(t, rs...))
}

// chargeOf returns the operation of a payment by card.
func (b *bank) chargeOf(t testing.TB, payment uuid.UUID) (operation uuid.UUID) {
	t.Helper()
	if err := b.owner.QueryRow(context.Background(), `SELECT id FROM psp_operations WHERE payment_id = $1 AND kind = 'charge'`, payment).Scan(&operation); err != nil {
		t.Fatal(err)
	}
	return operation
}

func succeeded(operation uuid.UUID) payments.Result {
	return payments.Result{OperationID: operation, State: payments.Succeeded, Reference: "ch_" + operation.String()}
}

func (b *bank) recordAll(t testing.TB, want []payments.Recorded, results ...payments.Result) {
	t.Helper()
	recorded, err := b.Record(context.Background(), results)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, recorded); diff != "" {
		t.Error(diff)
	}
}

// One account or payment that psql keeps locked delays its own results alone, and not for good.
func TestLockedRowSettlesLater(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(b *bank, t *testing.T, shop, payment, operation uuid.UUID) (release func()){
		"account": func(b *bank, t *testing.T, shop, _, _ uuid.UUID) func() { return b.lock(t, shop) },
		"payment": func(b *bank, t *testing.T, _, payment, _ uuid.UUID) func() { return b.lockPayment(t, payment) },
		"operation": func(b *bank, t *testing.T, _, _, operation uuid.UUID) func() {
			tx, err := b.owner.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			release := sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
			t.Cleanup(release)
			if _, err := tx.Exec(t.Context(), `SELECT FROM psp_operations WHERE id = $1 FOR UPDATE`, operation); err != nil {
				t.Fatal(err)
			}
			return release
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, nil)
			b.open(t, payments.Clearing, "USD")
			shop, other := b.customer(t, 0), b.customer(t, 0)
			stuck, free := b.charges(t, 1, shop)[0], b.charges(t, 2, other)
			operation := b.chargeOf(t, stuck)
			release := lock(b, t, shop, stuck, operation)

			b.recordAll(t, []payments.Recorded{payments.Applied, payments.Locked, payments.NoOperation},
				succeeded(b.chargeOf(t, free[0])), succeeded(operation), succeeded(uuid.New()))
			b.recordAll(t, []payments.Recorded{payments.Locked, payments.Locked, payments.Applied},
				succeeded(operation), succeeded(operation), succeeded(b.chargeOf(t, free[1])))
			release()
			testenv.Eventually(t, 30*time.Second, func() error {
				recorded, err := b.Record(t.Context(), []payments.Result{succeeded(operation)})
				if err == nil && recorded[0] != payments.Applied {
					err = errors.New("it counts as locked")
				}
				return err
			})
			if n, m := b.balance(t, shop), b.balance(t, other); n != 10 || m != 20 {
				t.Errorf("the accounts have %d and %d", n, m)
			}
			b.wantBalanced(t)
		})
	}
}

// Somebody changed rows by hand, so one result cannot be booked. In a batch it is to blame; alone it
// waits for an operator, and is never tried again by itself.
func TestDamagedRowWaitsForOperator(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"the payment has ended": `UPDATE payments SET status = 'declined', decline_code = 'x', settled_at = now() WHERE id = $1`,
		"the payment is gone":   `DELETE FROM payments WHERE id = $1`,
		"an account is gone":    `DELETE FROM accounts WHERE id = (SELECT destination_account FROM payments WHERE id = $1)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, nil)
			b.open(t, payments.Clearing, "USD")
			shop, other := b.customer(t, 0), b.customer(t, 0)
			bad, good := b.charges(t, 1, shop)[0], b.charges(t, 1, other)[0]
			b.claimed(t, 2)
			damaged, sound := b.chargeOf(t, bad), b.chargeOf(t, good)
			if _, err := b.owner.Exec(t.Context(), damage, bad); err != nil {
				t.Fatal(err)
			}

			if recorded, err := b.Record(t.Context(), []payments.Result{succeeded(damaged), succeeded(sound)}); !payments.OneIsToBlame(err) {
				t.Errorf("recorded %v, %v", recorded, err)
			}
			b.recordAll(t, []payments.Recorded{payments.Applied}, succeeded(sound))
			for range 2 {
				b.recordAll(t, []payments.Recorded{payments.Unbookable}, succeeded(damaged))
			}
			if n := count(t, b.owner, `SELECT count(*) FROM psp_operations WHERE id = $1 AND state = 'unknown' AND next_try_at = 'infinity' AND last_error <> ''
				AND reference <> '' AND ended_at IS NULL`, damaged); n != 1 {
				t.Error("it does not wait for an operator")
			}
			if n, m := b.balance(t, other), count(t, b.owner, `SELECT count(*) FROM ledger_entries WHERE payment_id = $1`, bad); n != 10 || m != 0 {
				t.Errorf("booked %d, and %d entries of the damaged one", n, m)
			}
		})
	}
}

// The books have no place for the money yet: once they have, the same result is booked.
func TestUnbookableIsBookedLater(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	shop, other := b.customer(t, 0), b.customer(t, 0)
	payment, free := b.charges(t, 1, shop)[0], b.charges(t, 1, other)[0]
	full := func(balance int64) {
		if _, err := b.owner.Exec(t.Context(), `UPDATE accounts SET balance_minor = $2 WHERE id = $1`, shop, balance); err != nil {
			t.Fatal(err)
		}
	}
	ops := b.claimed(t, 2)

	full(math.MaxInt64 - 9)
	o := b.chargeOf(t, payment)
	b.recordAll(t, []payments.Recorded{payments.Unbookable, payments.Unbookable, payments.Conflict, payments.Applied},
		succeeded(o), succeeded(o), payments.Result{OperationID: o, State: payments.OperationFailed}, succeeded(b.chargeOf(t, free)))
	b.recordAll(t, []payments.Recorded{payments.Unbookable}, succeeded(o))
	b.recordAll(t, []payments.Recorded{payments.Stale, payments.Stale},
		payments.Result{OperationID: o, State: payments.Unknown, Token: ops[0].Token}, payments.Result{OperationID: o, State: payments.Unknown})
	if n := count(t, b.owner, `SELECT count(*) FROM psp_operations WHERE next_try_at = 'infinity' AND state = 'unknown' AND reference <> ''`); n != 1 {
		t.Errorf("%d wait for an operator", n)
	}
	full(0)
	b.recordAll(t, []payments.Recorded{payments.Applied}, succeeded(o))
	b.wantBalanced(t)
}

// What is parked for an operator stays parked, whatever the last claim says afterwards.
func TestConflictEndsTheClaim(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	payment := b.charges(t, 1, b.customer(t, 0))[0]
	o := b.claimed(t, 1)[0]
	for _, other := range []payments.Result{
		{OperationID: o.ID, State: payments.Succeeded, AmountMinor: 11, Currency: "USD", Reference: "ch_1"},
		{OperationID: o.ID, State: payments.Succeeded, AmountMinor: 10, Currency: "USD", Reference: "ch_1", Kind: payments.RefundCharge},
		{OperationID: o.ID, State: payments.Succeeded, AmountMinor: 10, Currency: "EUR", Reference: "ch_1"},
	} {
		b.record(t, payments.Conflict, other)
	}
	b.record(t, payments.Stale, payments.Result{OperationID: o.ID, State: payments.Unknown, Token: o.Token})
	b.claimed(t, 0)
	if n := count(t, b.owner, `SELECT count(*) FROM psp_operations WHERE next_try_at = 'infinity' AND reference = 'ch_1' AND last_error LIKE '%10 EUR%'`); n != 1 {
		t.Error("it does not wait for an operator")
	}

	b.record(t, payments.Applied, payments.Result{OperationID: o.ID, State: payments.Succeeded, AmountMinor: 10, Currency: "USD", ResolvedBy: "ann"})
	if n := count(t, b.owner, `SELECT count(*) FROM psp_operations WHERE resolved_by = 'ann' AND reference = 'ch_1' AND last_error = ''`); n != 1 {
		t.Error("it was not resolved")
	}
	if n := count(t, b.owner, `SELECT count(*) FROM payments WHERE id = $1 AND status = 'completed'`, payment); n != 1 {
		t.Error("the payment is not completed")
	}
	b.wantBalanced(t)
}

// The PSP forgot the key sooner than it promised, and charged again: two ids for one operation.
func TestSecondReferenceIsNoRepeat(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	shop := b.customer(t, 0)
	o := b.chargeOf(t, b.charges(t, 1, shop)[0])
	charged := func(reference string) payments.Result {
		return payments.Result{OperationID: o, State: payments.Succeeded, AmountMinor: 10, Currency: "USD", Reference: reference}
	}
	b.recordAll(t, []payments.Recorded{payments.Applied, payments.Conflict, payments.Repeated}, charged("ch_1"), charged("ch_2"), charged("ch_1"))
	b.recordAll(t, []payments.Recorded{payments.Conflict, payments.Repeated, payments.Repeated}, charged("ch_2"), charged("ch_1"), charged(""))
	if n := b.balance(t, shop); n != 10 {
		t.Errorf("the account has %d", n)
	}
	b.wantBalanced(t)
}

// A worker that froze says that its try was refused. Another worker's try was executed since then, and
// its answer lost.
func TestRefusalNeedsTheLastClaim(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	shop := b.customer(t, 0)
	b.charges(t, 1, shop)
	frozen := b.claimed(t, 1)[0]
	if _, err := b.owner.Exec(t.Context(), `UPDATE psp_operations SET next_try_at = now()`); err != nil {
		t.Fatal(err)
	}
	last := b.claimed(t, 1)[0]

	for _, state := range []payments.OperationState{payments.OperationFailed, payments.OperationDeclined} {
		b.record(t, payments.Stale, payments.Result{OperationID: frozen.ID, State: state, Token: frozen.Token})
	}
	b.record(t, payments.Applied, payments.Result{OperationID: last.ID, State: payments.Unknown, Token: last.Token, RetryAfter: time.Hour})
	b.record(t, payments.Stale, payments.Result{OperationID: frozen.ID, State: payments.OperationFailed, Token: frozen.Token})
	executed := succeeded(frozen.ID)
	executed.Token = frozen.Token
	b.record(t, payments.Applied, executed)
	if n := b.balance(t, shop); n != 10 {
		t.Errorf("the account has %d", n)
	}
	b.wantBalanced(t)
}

// Nobody claimed it, so nobody can say that it was perhaps sent.
func TestUnknownNeedsAClaim(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	b.charges(t, 1, b.customer(t, 0))
	id := payments.Result{OperationID: uuid.UUID{}}
	if err := b.owner.QueryRow(t.Context(), `SELECT id FROM psp_operations`).Scan(&id.OperationID); err != nil {
		t.Fatal(err)
	}
	for _, state := range []payments.OperationState{payments.Unknown, payments.Pending, ""} {
		id.State = state
		b.record(t, payments.Stale, id)
	}
	if o := b.claimed(t, 1)[0]; o.State != payments.Pending || o.Tries != 1 {
		t.Errorf("%+v", o)
	}
}

// Each is judged on what the ones before left behind.
func TestResultsOfOneBatchAreJudgedInTurn(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	shop := b.customer(t, 0)
	b.charges(t, 3, shop)
	ops := b.claimed(t, 3)
	result := func(i int, state payments.OperationState) payments.Result {
		return payments.Result{OperationID: ops[i].ID, State: state, Token: ops[i].Token, AskOperator: true}
	}
	byOperator := result(1, payments.OperationFailed)
	byOperator.Token = 0
	wrong := succeeded(ops[1].ID)
	wrong.AmountMinor, wrong.Currency = 9, "USD"

	b.recordAll(t, []payments.Recorded{
		payments.Applied, payments.Applied, payments.Applied, payments.Applied, payments.Repeated, payments.Conflict,
		payments.Stale, payments.Conflict, payments.Applied, payments.Stale, payments.Conflict,
	},
		result(0, payments.Unknown), result(0, payments.Succeeded), result(1, payments.Unknown), result(2, payments.OperationDeclined), result(0, payments.Succeeded),
		result(0, payments.OperationFailed), result(0, payments.Unknown), wrong, byOperator, result(2, payments.Unknown), result(2, payments.Succeeded))
	if n := b.balance(t, shop); n != 10 {
		t.Errorf("the account has %d", n)
	}
	b.claimed(t, 0)
	b.wantBalanced(t)
}

// A PSP may say anything.
func TestTextsOfPSPAreCleaned(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	b.charges(t, 1, b.customer(t, 0))
	o := b.claimed(t, 1)[0]
	bad := "a\x00b\xff" + strings.Repeat("é", 10_000)
	b.record(t, payments.Applied, payments.Result{OperationID: o.ID, State: payments.Unknown, Token: o.Token, Error: bad, Reference: bad})
	b.record(t, payments.Applied, payments.Result{OperationID: o.ID, State: payments.OperationDeclined, Code: payments.Code(bad), Reference: bad})
	if n := count(t, b.owner, `SELECT count(*) FROM psp_operations WHERE code LIKE 'ab%' AND length(code) = 500 AND length(reference) = 500`); n != 1 {
		t.Error("the texts are not what they should be")
	}
	b.wantBalanced(t)
}

func TestMissingDayRefusesNoResult(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.open(t, payments.Clearing, "USD")
	shop := b.customer(t, 0)
	payment := b.charges(t, 1, shop)[0]
	dropDays(t, b, "outbox_events")
	b.record(t, payments.Applied, succeeded(b.chargeOf(t, payment)))
	if n, m := b.balance(t, shop), count(t, b.owner, `SELECT count(*) FROM outbox_events`); n != 10 || m != 1 {
		t.Errorf("booked %d with %d events", n, m)
	}
}

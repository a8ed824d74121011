package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/client"
)

// place makes an order of two books in a state.
func place(t *testing.T, db *pgxpool.Pool, account uuid.UUID, payTo uuid.UUID, state State) order {
	t.Helper()
	var o order
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		if o, err = one(t.Context(), tx, insertOrder, uuid.New(), "book", 2, account, nil, payTo); err != nil {
			return err
		}
		if err := appendEvent(t.Context(), tx, o); err != nil {
			return err
		}
		o, err = one(t.Context(), tx, `UPDATE orders SET state = $2 WHERE id = $1 RETURNING `+columns, o.ID, state)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// unreachable fails the test when something is sent.
type unreachable struct{ *testing.T }

func (t unreachable) RoundTrip(r *http.Request) (*http.Response, error) {
	t.Errorf("%s %s was sent", r.Method, r.URL)
	return nil, errors.New("unreachable")
}

func offline(t *testing.T, db *pgxpool.Pool) *worker {
	return &worker{db: db, lease: 30 * time.Second, api: &client.Client{HTTP: &http.Client{Transport: unreachable{t}}}}
}

func claim(t *testing.T, w *worker) order {
	t.Helper()
	o, err := w.claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func mustExec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// TestFrozenWorkerChangesNothing: while it was frozen, its lease ran out and another took the step.
func TestFrozenWorkerChangesNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, 10).Pool(t, "")
	w := offline(t, db)
	o := place(t, db, uuid.New(), uuid.New(), Placed)

	frozen := claim(t, w)
	if _, err := w.claim(t.Context()); err == nil {
		t.Fatal("two workers have the order")
	}
	mustExec(t, db, `UPDATE orders SET next_try_at = now()`)
	other := claim(t, w)
	if err := w.take(t.Context(), frozen); !errors.Is(err, errLost) {
		t.Errorf("before the other has taken the step: %v", err)
	}
	if err := w.take(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := w.take(t.Context(), frozen); !errors.Is(err, errLost) {
		t.Errorf("after the other has taken the step: %v", err)
	}
	for _, late := range []order{frozen, other} {
		if err := w.later(t.Context(), late, errAskOperator); err != nil {
			t.Fatal(err)
		}
	}

	o, err := one(t.Context(), db, selectOrder+` AND next_try_at <= now()`, o.ID)
	if err != nil || o.State != Reserved || o.Version != 2 {
		t.Errorf("it is %s, version %d, %v", o.State, o.Version, err)
	}
}

// TestSecondMoveIsImpossible: were an order wrongly in an earlier state, its stock would not move
// again.
func TestSecondMoveIsImpossible(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, 10).Pool(t, "")
	w := offline(t, db)
	place(t, db, uuid.New(), uuid.New(), Placed)
	if err := w.take(t.Context(), claim(t, w)); err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, `UPDATE orders SET state = 'placed'`)
	if err := w.take(t.Context(), claim(t, w)); err == nil || !strings.Contains(err.Error(), "stock_moves_pkey") {
		t.Errorf("the stock moved again: %v", err)
	}
}

// TestForgottenKeyIsNotSent: the service may have forgotten the key, and would charge again.
func TestForgottenKeyIsNotSent(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, 10).Pool(t, "")
	w := offline(t, db)
	for _, state := range []State{Reserved, RefundDue} {
		o := place(t, db, uuid.New(), uuid.New(), state)
		mustExec(t, db, `UPDATE orders SET payment_id = id, first_tried_at = now() - interval '49 h', tries = 5 WHERE id = $1`, o.ID)
		w.handle(t.Context(), claim(t, w))

		var waits bool
		var why string
		err := db.QueryRow(t.Context(), `SELECT next_try_at = 'infinity', last_error FROM orders WHERE id = $1`, o.ID).Scan(&waits, &why)
		if err != nil || !waits || !strings.Contains(why, o.ID.String()+"/") {
			t.Errorf("%s: waits for an operator %t, because %q, %v", state, waits, why, err)
		}
	}
}

// TestCancelBeforeTheCharge: nothing is sent if nothing was. If something may have been sent, its
// outcome must be known first.
func TestCancelBeforeTheCharge(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, 10).Pool(t, "")
	w := offline(t, db)
	o := place(t, db, uuid.New(), uuid.New(), Reserved)
	mustExec(t, db, `UPDATE orders SET cancel_requested = true`)
	if err := w.take(t.Context(), claim(t, w)); err != nil {
		t.Fatal(err)
	}
	if o, err := one(t.Context(), db, selectOrder, o.ID); err != nil || o.State != Unpaid || o.Reason != "canceled" {
		t.Errorf("it is %s (%s), %v", o.State, o.Reason, err)
	}

	mustExec(t, db, `UPDATE orders SET state = 'reserved', tries = 1`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := unheard{giveUp: cancel}
	w.api.HTTP.Transport = &asked
	if err := w.take(ctx, claim(t, w)); !errors.Is(err, client.ErrUnknown) || len(asked.keys) == 0 {
		t.Errorf("%v, sent under %q", err, asked.keys)
	}
}

// unheard keeps the keys of what was sent, and answers nothing.
type unheard struct {
	keys   []string
	giveUp context.CancelFunc
}

func (u *unheard) RoundTrip(r *http.Request) (*http.Response, error) {
	u.keys = append(u.keys, r.Header.Get("Idempotency-Key"))
	u.giveUp()
	return nil, errors.New("no answer")
}

// TestDeclinedRefundIsAskedAgain under a key of its own, once the shop has the money.
func TestDeclinedRefundIsAskedAgain(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	db := newDatabase(t, 10).Pool(t, "")
	w := &worker{db: db, lease: 30 * time.Second, api: &client.Client{URL: "http://" + b.addr, Token: b.Token}}
	pay := func(key string, from, to uuid.UUID, amount int64) {
		t.Helper()
		a, err := w.api.Post(t.Context(), "/api/v1/payments", key, map[string]any{
			"amount_minor": amount, "currency": "USD", "source_account": from, "destination_account": to,
		})
		if err != nil || a.Status != http.StatusCreated {
			t.Fatalf("%d %s %v", a.Status, a.Body, err)
		}
	}
	take := func(want State) {
		t.Helper()
		mustExec(t, db, `UPDATE orders SET next_try_at = now()`)
		w.handle(t.Context(), claim(t, w))
		var got State
		if err := db.QueryRow(t.Context(), `SELECT state FROM orders`).Scan(&got); err != nil || got != want {
			t.Fatalf("it is %s, want %s, %v", got, want, err)
		}
	}

	o := place(t, db, b.customer(), b.shop(), Placed)
	take(Reserved)
	take(Charged)
	pay("spend", b.shop(), b.customer(), funds+o.AmountMinor)
	mustExec(t, db, `UPDATE orders SET cancel_requested = true`)
	take(RefundDue)
	take(RefundDue)
	take(RefundDue)
	pay("earn", b.customer(), b.shop(), funds)
	take(Refunded)
	take(Released)

	rows, _ := b.owner.Query(t.Context(), `SELECT c.idempotency_key FROM payment_commands c JOIN payments p ON p.id = c.payment_id
		WHERE p.client_reference = $1 ORDER BY c.version`, o.ID.String())
	var keys []string
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, strings.TrimPrefix(key, o.ID.String()))
	}
	if want := []string{"/refund", "/refund/2", "/refund/3"}; !slices.Equal(keys, want) {
		t.Errorf("refunds were asked for under %q, want %q", keys, want)
	}
	check(t, b.payments, db)
}

// TestDocumentedSaga compares README.md with the table, and the table with itself.
func TestDocumentedSaga(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	reached := map[State]bool{Placed: true}
	for state, step := range saga {
		var to []string
		for _, next := range step.to {
			reached[next] = true
			to = append(to, "`"+string(next)+"`")
		}
		key := "–"
		if step.key != "" {
			key = "`<order>/" + step.key + "`"
		}
		if row := fmt.Sprintf("| `%s` | %s | %s |", state, key, strings.Join(to, ", ")); !strings.Contains(string(readme), row) {
			t.Errorf("README.md lacks\n%s", row)
		}
		if (step.call == nil) == (step.work == nil) {
			t.Errorf("%s must call or work", state)
		}
	}
	for state := range saga {
		if !reached[state] {
			t.Errorf("no step leads to %s", state)
		}
	}
	for _, end := range []State{Confirmed, Released, Rejected} {
		delete(reached, end)
	}
	if len(reached) != len(saga) {
		t.Errorf("there are other ends than the three: %v", reached)
	}
}

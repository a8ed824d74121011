package psp_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// worker runs a worker until the test ends, or stop. No lease ends, so each try is one that the test
// asked for.
func (s *scene) worker(t *testing.T) (stop func()) {
	t.Helper()
	return s.workerWith(t, time.Minute)
}

func (s *scene) workerWith(t *testing.T, lease time.Duration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, s.db.URLAs("worker"), s.db.URLAs("worker"), s.url, lease, 5*time.Second)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// is waits until a query that returns one text returns want.
func (s *scene) is(t *testing.T, want, sql string) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		var got string
		if err := s.owner.QueryRow(context.Background(), sql).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s: got %q, want %q", sql, got, want)
		}
		return nil
	})
}

const (
	howItEnded = `SELECT status || ' ' || decline_code || ' ' || (SELECT state || ' ' || tries || ' ' || (ended_at IS NULL AND next_try_at = 'infinity') FROM psp_operations) FROM payments`
	theBooks   = `SELECT count(*) || ' ' || coalesce(sum(amount_minor), 0) || ' ' || (SELECT balance_minor FROM accounts WHERE kind = 'customer') FROM ledger_entries`
)

// TestRefusals: what the PSP refuses at once ends the payment, and no money moves.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for card, want := range map[string]string{
		"tok_declined": "declined card-declined declined 1 false",
		"tok_invalid":  "failed refused-by-psp failed 1 false",
	} {
		t.Run(card, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.execute(t, payments.CreatePayment{AmountMinor: 500, Currency: "USD", Card: card, DestinationAccount: s.shop})
			s.worker(t)
			s.is(t, want, howItEnded)
			s.is(t, "0 0 0", theBooks)
		})
	}
}

// TestKeyForgotten: a key that the PSP may have forgotten is not used again. What it has in its books counts; what it has not is an
// operator's.
func TestKeyForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults  fakepsp.Faults
		want    string
		charges int
	}{
		"executed":     {fakepsp.Faults{LoseReply: 1}, "completed  succeeded 2 false", 1},
		"not executed": {fakepsp.Faults{ErrorBefore: 1}, "processing  unknown 2 true", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			if err := s.books.SetFaults(c.faults); err != nil {
				t.Fatal(err)
			}
			s.pay(t, 500)
			stop := s.worker(t)
			s.is(t, "unknown true", `SELECT state || ' ' || (last_error <> '') FROM psp_operations`)
			stop()

			if err := s.books.SetFaults(fakepsp.Faults{ForgetKeysAfter: fakepsp.Duration(time.Nanosecond)}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.owner.Exec(t.Context(), `UPDATE psp_operations SET tries = 1, created_at = now() - interval '23 hours 1 second', next_try_at = now()`); err != nil {
				t.Fatal(err)
			}
			s.worker(t)
			s.is(t, c.want, howItEnded)
			if b := s.books.Books(); len(b.Charges) != c.charges {
				t.Errorf("%+v", b)
			}
		})
	}
}

// TestBreakerOpen: while the PSP is down operations stay pending and intake goes on; when it is back all end.
func TestBreakerOpen(t *testing.T) {
	t.Parallel()
	for _, down := range []string{fakepsp.Unavailable, fakepsp.Reset} {
		t.Run(down, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			if err := s.books.SetFaults(fakepsp.Faults{Down: down}); err != nil {
				t.Fatal(err)
			}
			s.worker(t)
			for range 20 {
				s.pay(t, 100)
			}
			testenv.Eventually(t, soon, func() error {
				var tried int
				s.scan(t, `SELECT coalesce(sum(tries), 0) FROM psp_operations`, &tried)
				if tried < 10 {
					return errors.New("the breaker is closed")
				}
				return nil
			})

			for range 20 { // open for five seconds
				s.pay(t, 100)
			}
			var pending int
			s.scan(t, `SELECT count(*) FROM psp_operations WHERE state = 'pending' AND tries = 0`, &pending)
			if pending < 20 {
				t.Errorf("%d of 40 are pending", pending)
			}

			if err := s.books.SetFaults(fakepsp.Faults{}); err != nil {
				t.Fatal(err)
			}
			s.is(t, "40", `SELECT count(*)::text FROM payments WHERE status = 'completed'`)
			s.is(t, "80 0 4000", theBooks)
			if totals := s.books.Totals(); totals.ChargesSucceeded != 40 || totals.OperationsTwice != 0 {
				t.Errorf("%+v", totals)
			}
		})
	}
}

// TestLockedAccountIsRecordedLater: psql keeps an account locked; the results for it wait and are recorded when it is free.
func TestLockedAccountIsRecordedLater(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.pay(t, 500)
	psql, err := s.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = psql.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := psql.Exec(t.Context(), `SELECT FROM accounts WHERE id = $1 FOR UPDATE`, s.shop); err != nil {
		t.Fatal(err)
	}
	s.workerWith(t, 3*time.Second) // for the case that the lock is held too long
	testenv.Eventually(t, soon, func() error {
		if s.books.Totals().ChargesSucceeded == 0 {
			return errors.New("not charged")
		}
		return nil
	})
	s.is(t, "processing unknown", `SELECT status || ' ' || (SELECT state FROM psp_operations) FROM payments`)
	if err := psql.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error {
		var status string
		if s.scan(t, `SELECT status FROM payments`, &status); status != "completed" {
			return errors.New(status)
		}
		return nil
	})
	s.is(t, "2 0 500", theBooks)
	if totals := s.books.Totals(); totals.ChargesSucceeded != 1 {
		t.Errorf("%+v", totals)
	}
}

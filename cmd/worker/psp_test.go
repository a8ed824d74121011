package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

const apiKey = "sk_test_do_not_log"

// newPSPServer is a PSP over HTTP, until the test ends.
func newPSPServer(t *testing.T) (*fakepsp.PSP, string) {
	t.Helper()
	p, err := fakepsp.Open(t.TempDir(), fakepsp.Options{APIKey: apiKey})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		p.Drain()
		server.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, server.URL
}

// byCard makes n payments by card.
func (s *shop) byCard(t *testing.T, n int) {
	t.Helper()
	var cs []payments.Command
	for range n {
		cs = append(cs, payments.CreatePayment{AmountMinor: 10, Currency: "USD", Card: "tok_visa", DestinationAccount: s.accounts[1]})
	}
	s.execute(t, cs...)
}

func newCardShop(t *testing.T, db *testenv.DB) *shop {
	t.Helper()
	s := newShop(t, db)
	s.execute(t, payments.CreateAccount{Kind: payments.Clearing, Currency: "USD"})
	return s
}

func TestCardsAreCharged(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newCardShop(t, db)
	p, url := newPSPServer(t)
	s.byCard(t, 300)
	i := start(t, db.URLAs("worker"), "WORKER_PARTS", "psp", "PSP_URL", url, "PSP_API_KEY", apiKey)
	testenv.Eventually(t, soon, func() error {
		return i.shows(`psp_calls_total{call="charge",outcome="succeeded"} 300`, `psp_results_total{kind="charge",recorded="applied"} 300`,
			`psp_call_seconds_count{call="charge"} 300`, "psp_first_call_wait_seconds_count 300", "psp_operations_in_flight 0",
			`psp_breaker{state="closed"} 1`, `psp_breaker{state="open"} 0`, `psp_conflicts_total{kind="charge"} 0`,
			`psp_operations_waiting{state="pending"} 0`, `psp_operations_waiting{state="unknown"} 0`, `psp_operations_waiting{state="operator"} 0`, "psp_oldest_operation_seconds 0")
	})
	if n := s.count(t, `SELECT count(*) FROM payments WHERE status = 'completed' AND version = 2`); n != 300 {
		t.Errorf("%d are completed", n)
	}
	if totals := p.Totals(); totals.ChargesSucceeded != 300 || totals.OperationsTwice != 0 {
		t.Errorf("%+v", totals)
	}
	if status, text, err := i.get("/readyz"); err != nil || status != 200 || text != "ok\npsp breaker: closed\n" {
		t.Errorf("readyz: %d %q %v", status, text, err)
	}
	i.stop()
	if log := i.log.String(); strings.Contains(log, apiKey) || strings.Contains(log, `"level":"WARN"`) || strings.Contains(log, `"level":"ERROR"`) {
		t.Error(log)
	}
}

// TestBreakerShows: the worker is ready until nothing has ended for long, and says what is wrong.
func TestBreakerShows(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newCardShop(t, db)
	p, url := newPSPServer(t)
	if err := p.SetFaults(fakepsp.Faults{Down: fakepsp.Unavailable}); err != nil {
		t.Fatal(err)
	}
	s.byCard(t, 30)
	i := start(t, db.URLAs("worker"), "WORKER_PARTS", "psp", "PSP_URL", url, "PSP_API_KEY", apiKey, "PSP_CONCURRENCY", "4")
	testenv.Eventually(t, soon, func() error {
		if status, text, err := i.get("/readyz"); err != nil || status != 200 || text != "ok\npsp breaker: open\n" {
			return fmt.Errorf("readyz: %d %q %w", status, text, err)
		}
		return i.shows(`psp_breaker{state="closed"} 0`, `psp_breaker{state="open"} 1`, `psp_calls_total{call="charge",outcome="server_error"} 1[0-9]`,
			`psp_operations_waiting{state="pending"} [12][0-9]`, `psp_operations_waiting{state="unknown"} 1[0-9]`, `psp_oldest_operation_seconds [0-9.]*[1-9][0-9.]*`)
	})
	if err := p.SetFaults(fakepsp.Faults{}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error {
		return i.shows(`psp_operations_waiting{state="pending"} 0`, `psp_operations_waiting{state="unknown"} 0`, `psp_breaker{state="closed"} 1`)
	})
	i.stop()
	if log := i.log.String(); !strings.Contains(log, "the breaker of the PSP has changed its state") || strings.Contains(log, apiKey) {
		t.Error(log)
	}
}

// TestWrongAnswersAlarm: an answer that contradicts our books is an error in the log and a metric, and waits for an operator.
func TestWrongAnswersAlarm(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newCardShop(t, db)
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"id":"ch_9","object":"charge","amount":1000,"currency":"usd","status":"succeeded"}`)
	}))
	t.Cleanup(server.Close)
	s.byCard(t, 1)
	i := start(t, db.URLAs("worker"), "WORKER_PARTS", "psp", "PSP_URL", server.URL, "PSP_API_KEY", apiKey)
	testenv.Eventually(t, soon, func() error {
		return i.shows(`psp_conflicts_total{kind="charge"} 1`, `psp_operations_waiting{state="operator"} 1`)
	})
	i.stop()
	var operation, payment uuid.UUID
	var reference string
	if err := s.pool.QueryRow(t.Context(), `SELECT id, payment_id, reference FROM psp_operations`).Scan(&operation, &payment, &reference); err != nil {
		t.Fatal(err)
	}
	log := i.log.String()
	for _, want := range []string{`"level":"ERROR"`, operation.String(), payment.String(), "ch_9", "1000"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	if n := calls.Load(); n != 1 || reference != "ch_9" {
		t.Errorf("%d calls, reference %q", n, reference)
	}
}

// TestPSPOutlivesTheDatabase: it waits the database out, and what it cannot measure it does not show.
func TestPSPOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := newCardShop(t, db)
	p, url := newPSPServer(t)
	proxy := pgproxy.Start(t, db.URL, func(int, int) pgproxy.Fate { return pgproxy.Pass })
	i := start(t, proxy.URL(db.URLAs("worker")), "WORKER_PARTS", "psp", "PSP_URL", url, "PSP_API_KEY", apiKey)
	testenv.Eventually(t, soon, func() error { return i.shows(`psp_operations_waiting{state="pending"} 0`) })
	proxy.SetDown(true)
	s.byCard(t, 5)
	testenv.Eventually(t, soon, func() error {
		if i.shows(`psp_operations_waiting.*`) == nil || i.shows(`psp_oldest_operation_seconds.*`) == nil {
			return errors.New("it shows what it cannot know")
		}
		if !strings.Contains(i.log.String(), "operations not claimed, trying again") { // a claim has its own patience
			return errors.New("no claim has failed")
		}
		return nil
	})
	proxy.SetDown(false)
	testenv.Eventually(t, soon, func() error {
		if n := s.count(t, `SELECT count(*) FROM payments WHERE status = 'completed' AND version = 2`); n != 5 {
			return fmt.Errorf("%d are completed", n)
		}
		return i.shows(`psp_operations_waiting{state="pending"} 0`)
	})
	if totals := p.Totals(); totals.ChargesSucceeded != 5 || totals.OperationsTwice != 0 {
		t.Errorf("%+v", totals)
	}
}

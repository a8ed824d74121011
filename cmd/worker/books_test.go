package main

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/telemetry"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/test/pgproxy"
)

func TestWorkerShowsBooksThatAreWrong(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	proxy := pgproxy.Start(t, db.URL, func(int, int) pgproxy.Fate { return pgproxy.Pass })
	s := newShop(t, db)
	s.execute(t, payments.CreateAccount{Kind: payments.Customer, Currency: "EUR"})
	exec := func(sql string) {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pgxpool.New(t.Context(), proxy.URL(db.URLAs("worker")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)

	var log buffer
	reg := prometheus.NewRegistry()
	b := &books{db: pool, metrics: telemetry.NewWorker(reg), log: slog.New(slog.NewTextHandler(&log, nil))}
	wantBooks := func(lines ...string) {
		t.Helper()
		b.sum(t.Context())
		b.walk(t.Context())
		w := httptest.NewRecorder()
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		var got []string
		for line := range strings.Lines(w.Body.String()) {
			if strings.HasPrefix(line, "books_wrong{") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if strings.Join(got, ", ") != strings.Join(lines, ", ") {
			t.Errorf("got %v, want %v", got, lines)
		}
	}

	wantBooks(`books_wrong{check="accounts"} 0`, `books_wrong{check="currencies"} 0`)
	if log.String() != "" {
		t.Error(log.String())
	}

	exec(`UPDATE accounts SET balance_minor = 7 WHERE currency = 'EUR'`)
	wantBooks(`books_wrong{check="accounts"} 1`, `books_wrong{check="currencies"} 1`)
	for _, text := range []string{"balances do not sum to zero", "currency=EUR sum_minor=7", "accounts do not agree with their ledger entries"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("the log lacks %q:\n%s", text, log.String())
		}
	}

	proxy.SetDown(true)
	wantBooks()
	proxy.SetDown(false)
	exec(`UPDATE accounts SET balance_minor = 0 WHERE currency = 'EUR'`)
	testenv.Eventually(t, soon, func() error { return b.db.Ping(t.Context()) })
	wantBooks(`books_wrong{check="accounts"} 0`, `books_wrong{check="currencies"} 0`)
}

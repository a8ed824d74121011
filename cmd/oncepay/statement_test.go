package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/statements"
)

// consume has the consumer count every event of the outbox, as if it had come over Kafka.
func (s *shop) consume(t *testing.T) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), s.db.Pool(t, ""), func(tx pgx.Tx) error {
		rows, _ := tx.Query(t.Context(), `SELECT event_type, aggregate_id, payload FROM outbox_events ORDER BY id`)
		events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e inbox.Event, err error) {
			return e, row.Scan(&e.Type, &e.Subject, &e.Payload)
		})
		if err != nil {
			return err
		}
		return statements.Handle(t.Context(), tx, events)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *shop) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := s.db.Pool(t, "").Exec(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func TestAStatementShowsConsumerAndLedgerSideBySide(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.Accounts[0].ID.String()
	must(t, s.env, s.order("--amount", "2500", "--key", "order-1")...)

	var lagging, level statement
	mustJSON(t, &lagging, s.owner, "statement", id)
	ledger := sums{Payments: 2, DebitsMinor: 2500, CreditsMinor: 100_000}
	if len(lagging.Days) != 1 || lagging.Agrees {
		t.Fatalf("before the consumer: %+v", lagging)
	}
	want := day{Day: lagging.Days[0].Day, Ledger: ledger, BalanceMinor: 97_500}
	if diff := cmp.Diff(want, lagging.Days[0]); diff != "" {
		t.Errorf("before the consumer (-want +got):\n%s", diff)
	}
	if out := must(t, s.owner, "statement", id); !strings.Contains(out, "97500    differs\n") || !strings.Contains(out, "differ on 1 of 1 days: the consumer lags") {
		t.Errorf("before the consumer:\n%s", out)
	}

	s.consume(t)
	mustJSON(t, &level, s.owner, "statement", id)
	want.Statement, want.Agrees = ledger, true
	if diff := cmp.Diff(want, level.Days[0]); diff != "" || !level.Agrees || level.Account.BalanceMinor != 97_500 {
		t.Errorf("with the consumer: %+v (-want +got):\n%s", level, diff)
	}
	if out := must(t, s.owner, "statement", id); !strings.Contains(out, "Consumer and ledger agree on every day.\n") || strings.Contains(out, "differ") || strings.Contains(out, "WRONG") {
		t.Errorf("with the consumer:\n%s", out)
	}

	s.exec(t, `UPDATE accounts SET balance_minor = balance_minor + 1 WHERE id = $1`, id)
	if out := must(t, s.owner, "statement", id); !strings.Contains(out, "THE BOOKS ARE WRONG: the balance is 97501, the entries add up to 97500.") {
		t.Errorf("with a wrong balance:\n%s", out)
	}
	mustJSON(t, &level, s.owner, "statement", id)
	if level.Agrees {
		t.Error("with a wrong balance it agrees")
	}
}

func TestDaysAreThoseOfUTCWhateverTheLogin(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := uuid.New()
	s.exec(t, `INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, entry_count) VALUES ($1, $2, 'customer', 'USD', 60, 3)`, id, s.TenantID)
	s.exec(t, `INSERT INTO ledger_entries (account_id, tenant_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
		SELECT $1, $2, n, gen_random_uuid(), gen_random_uuid(), 'USD', amount, after, at::timestamptz FROM (VALUES
			(1, 100, 100, '2026-03-01 23:59:59.999Z'), (2, -50, 50, '2026-03-02 00:00:00Z'), (3, 10, 60, '2026-03-01 23:59:59.998Z')) e(n, amount, after, at)`, id, s.TenantID)
	s.exec(t, `INSERT INTO statements VALUES ($1, '2026-03-05', 'USD', 1, 0, 7)`, id)
	var got statement
	mustJSON(t, &got, owner(s.db.URL+"&timezone=Pacific/Auckland"), "statement", id.String())
	want := []day{
		{Day: "2026-03-01", Ledger: sums{2, 0, 110}, BalanceMinor: 110},
		{Day: "2026-03-02", Ledger: sums{1, 50, 0}, BalanceMinor: 60},
		{Day: "2026-03-05", Statement: sums{1, 0, 7}, BalanceMinor: 60}, // counted, but not in the ledger
	}
	if diff := cmp.Diff(want, got.Days); diff != "" {
		t.Errorf("days (-want +got):\n%s", diff)
	}
}

// A hundred days with a payment each; every page adds up, and says how to go on.
func TestAStatementIsBoundedAndGoesOn(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := uuid.New()
	s.exec(t, `INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, entry_count) VALUES ($1, $2, 'customer', 'USD', 1000, 100)`, id, s.TenantID)
	s.exec(t, `INSERT INTO ledger_entries (account_id, tenant_id, entry_no, id, payment_id, currency, amount_minor, balance_after_minor, created_at)
		SELECT $1, gen_random_uuid(), n, gen_random_uuid(), gen_random_uuid(), 'USD', 10, 10 * n, '2026-01-01 00:00Z'::timestamptz + (n - 1) * interval '1 day' FROM generate_series(1, 100) n`, id)

	var days []string
	until, pages := []string{}, 0
	for more := true; more; pages++ {
		var page statement
		mustJSON(t, &page, s.owner, append([]string{"statement", id.String(), "--days", "30"}, until...)...)
		for i, d := range page.Days {
			n := 100 - len(days) - (len(page.Days) - i)
			if want := (sums{1, 0, 10}); d.Ledger != want || d.BalanceMinor != int64(10*(n+1)) {
				t.Errorf("page %d: %+v, want a balance of %d", pages, d, 10*(n+1))
			}
		}
		for range page.Days {
			days = append(days, "")
		}
		until, more = []string{"--until", page.Earlier}, page.Earlier != ""
	}
	if pages != 4 || len(days) != 100 {
		t.Errorf("%d pages with %d days", pages, len(days))
	}

	out := must(t, s.owner, "statement", id.String())
	if strings.Count(out, "\n2026-") != 31 || !strings.Contains(out, "Earlier days: oncepay statement "+id.String()+" --until 2026-03-11\n") || strings.Contains(out, "WRONG") {
		t.Errorf("by default:\n%s", out)
	}
	if out := must(t, s.owner, "statement", id.String(), "--until", "2025-06-01"); !strings.Contains(out, "no payment on these days") {
		t.Errorf("before the first day:\n%s", out)
	}
	s.exec(t, `UPDATE accounts SET balance_minor = 999 WHERE id = $1`, id)
	if out := must(t, s.owner, "statement", id.String()); !strings.Contains(out, "THE BOOKS ARE WRONG: the balance is 999, the entries add up to 1000.") {
		t.Errorf("with a wrong balance:\n%s", out)
	}
}

func TestAnAccountThatIsNotThereIsSaidSo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	const id = "0198a6de-5c1f-7000-8000-0123456789ab"
	if _, stderr, code := oncepay(t, s.owner, "statement", id); code != exitFailed || stderr != "oncepay: there is no account "+id+"\n" {
		t.Errorf("exit %d, %s", code, stderr)
	}
	var fresh seeded
	mustJSON(t, &fresh, s.owner, "seed", "--tenant", "demo", "--client", "shop", "--currency", "EUR", "--accounts", "1")
	if out := must(t, s.owner, "statement", fresh.Accounts[0].ID.String()); !strings.Contains(out, "no payment yet\n") {
		t.Errorf("a fresh one:\n%s", out)
	}
	s.exec(t, `UPDATE accounts SET balance_minor = 1 WHERE id = $1`, fresh.Accounts[0].ID)
	if out := must(t, s.owner, "statement", fresh.Accounts[0].ID.String()); !strings.Contains(out, "THE BOOKS ARE WRONG: the balance is 1, the entries add up to 0.") {
		t.Errorf("with a balance from nowhere:\n%s", out)
	}
}

func TestALoginThatMayNotSeeEveryRowIsToldSo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	stdout, stderr, code := oncepay(t, owner(s.db.URLAs("api_read")), "statement", s.Accounts[0].ID.String())
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "row-level security") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
}

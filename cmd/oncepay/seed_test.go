package main

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestSeedMakesWhatIsMissingAndTheBooksBalance(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	args := []string{"seed", "--tenant", "demo", "--client", "shop", "--currency", "USD", "--fund", "100000", "--json"}

	first := seedJSON(t, db.URL, append(args, "--accounts", "2", "--scopes", credentials.ScopeFund)...)
	if len(first.Accounts) != 2 || first.SystemAccount == nil || first.SystemAccount.BalanceMinor != -200_000 {
		t.Fatalf("first: %+v", first)
	}
	for _, a := range first.Accounts {
		if a.BalanceMinor != 100_000 || a.Currency != "USD" || a.Kind != "customer" {
			t.Errorf("account %+v", a)
		}
	}
	verifier := credentials.NewVerifier(db.Pool(t, "api_write"), time.Now)
	got, err := verifier.Verify(t.Context(), first.Token)
	want := credentials.Identity{TenantID: first.TenantID, ClientID: first.ClientID, CredentialID: first.CredentialID, Scopes: []string{credentials.ScopeFund}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("token: %v (-want +got):\n%s", err, diff)
	}

	second := seedJSON(t, db.URL, append(args, "--accounts", "3", "--credential=false")...)
	if second.Token != "" || second.CredentialID != "" {
		t.Errorf("a credential was made: %+v", second)
	}
	if second.TenantID != first.TenantID || second.ClientID != first.ClientID || second.SystemAccount.ID != first.SystemAccount.ID {
		t.Errorf("made again: %+v, first %+v", second, first)
	}
	if diff := cmp.Diff(first.Accounts, second.Accounts[:2]); diff != "" || len(second.Accounts) != 3 || second.SystemAccount.BalanceMinor != -300_000 {
		t.Errorf("accounts (-first +second):\n%s\n%+v", diff, second)
	}

	third := seedJSON(t, db.URL, "seed", "--tenant", "demo", "--client", "shop", "--json")
	if third.Token == "" || third.CredentialID == first.CredentialID || third.ClientID != first.ClientID {
		t.Errorf("rotation: %+v", third)
	}
	checkBooks(t, db.Pool(t, ""), 4, 3)
}

func TestSeedGoesOnWhereAnEarlierOneWasInterrupted(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	args := []string{"seed", "--tenant", "demo", "--client", "shop", "--currency", "JPY", "--accounts", "2", "--json"}
	before := seedJSON(t, db.URL, args...) // opened, not funded
	after := seedJSON(t, db.URL, append(args, "--fund", "5")...)
	for i, a := range after.Accounts {
		if a.ID != before.Accounts[i].ID || a.BalanceMinor != 5 {
			t.Errorf("%+v, before %+v", a, before.Accounts[i])
		}
	}
	checkBooks(t, db.Pool(t, ""), 3, 2)
}

// The API may be paying from the system account just now.
func TestSeedWaitsForLockedSystemAccount(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	args := []string{"seed", "--tenant", "demo", "--client", "shop", "--currency", "USD", "--accounts", "2", "--json"}
	seedJSON(t, db.URL, args...)
	tx, err := db.Pool(t, "").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `UPDATE accounts SET name = name WHERE kind = 'system'`); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Second, func() { _ = tx.Rollback(context.Background()) })

	for _, a := range seedJSON(t, db.URL, append(args, "--fund", "5")...).Accounts {
		if a.BalanceMinor != 5 {
			t.Errorf("%+v", a)
		}
	}
	checkBooks(t, db.Pool(t, ""), 3, 2)
}

func TestSeedsAtOnceMakeEverythingOnce(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	codes := make(chan string, 4)
	for range cap(codes) {
		go func() {
			_, stderr, _ := oncepay(t, owner(db.URL), "seed", "--tenant", "demo", "--client", "shop", "--currency", "USD", "--accounts", "5", "--fund", "1")
			codes <- stderr
		}()
	}
	for range cap(codes) {
		if stderr := <-codes; stderr != "" {
			t.Error(stderr)
		}
	}
	checkBooks(t, db.Pool(t, ""), 6, 5)
}

func TestSeedHandlesMoreAccountsThanOneTransactionTakes(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	s := seedJSON(t, db.URL, "seed", "--tenant", "demo", "--client", "shop", "--currency", "KWD", "--accounts", "1001", "--fund", "7", "--json")
	if len(s.Accounts) != 1001 || s.Accounts[1000].Name != "seed 1001" || s.SystemAccount.BalanceMinor != -7007 {
		t.Errorf("%d accounts, system %+v", len(s.Accounts), s.SystemAccount)
	}
	checkBooks(t, db.Pool(t, ""), 1002, 1001)
}

func TestSeedAsTextShowsTheTokenOnceAndOnlyThere(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	text := must(t, owner(db.URL), "seed", "--tenant", "demo", "--client", "shop", "--currency", "USD", "--accounts", "1", "--fund", "250")
	found := regexp.MustCompile(`oncepay_\w+`).FindAllString(text, -1)
	if len(found) != 1 || !strings.Contains(text, "250 USD") || !strings.Contains(text, "-250 USD") {
		t.Fatalf("text:\n%s", text)
	}
	if _, ok := credentials.Parse(found[0]); !ok {
		t.Errorf("%s is no token", found[0])
	}
}

func seedJSON(t *testing.T, databaseURL string, args ...string) (s seeded) {
	t.Helper()
	if err := json.Unmarshal([]byte(must(t, owner(databaseURL), args...)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// checkBooks counts what must be there, and what must not.
func checkBooks(t *testing.T, owner *pgxpool.Pool, accounts, payments int64) {
	t.Helper()
	for _, c := range []struct {
		query string
		want  int64
	}{
		{`SELECT count(*) FROM accounts`, accounts},
		{`SELECT count(*) FROM payments WHERE status = 'completed' AND method = 'CLI' AND route = 'oncepay seed'`, payments},
		{`SELECT count(*) FROM outbox_events WHERE event_type = 'account.opened'`, accounts},
		{`SELECT count(*) FROM outbox_events WHERE event_type = 'payment.completed'`, payments},
		{`SELECT count(*) FROM idempotency_keys`, accounts + payments},
		{`SELECT count(*) FROM ledger_entries`, 2 * payments},
		{`SELECT count(*) FROM (SELECT FROM ledger_entries GROUP BY payment_id, currency HAVING sum(amount_minor) <> 0) x`, 0},
		{`SELECT count(*) FROM accounts a, LATERAL (
			SELECT coalesce(sum(amount_minor), 0) AS balance, coalesce(max(entry_no), 0) AS last, count(*) AS entries
			FROM ledger_entries WHERE account_id = a.id) e
		  WHERE (a.balance_minor, a.entry_count, a.entry_count) IS DISTINCT FROM (e.balance, e.last, e.entries)`, 0},
	} {
		var got int64
		if err := owner.QueryRow(t.Context(), c.query).Scan(&got); err != nil || got != c.want {
			t.Errorf("%s: %d, want %d; %v", c.query, got, c.want, err)
		}
	}
}

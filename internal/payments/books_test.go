package payments_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/payments"
)

// TestBooksShowWhatWasChangedByHand: ada has 13 entries, and bob as many.
func TestBooksShowWhatWasChangedByHand(t *testing.T) {
	t.Parallel()
	const none, ada, bob = "", "ada", "bob"
	for name, c := range map[string]struct {
		damage string
		sum    string // of all balances in USD
		wrong  string // accounts
	}{
		"nothing":                  {"", "", none},
		"a balance":                {"UPDATE accounts SET balance_minor = balance_minor + 7 WHERE id = ADA", "7", ada},
		"a balance for another":    {"UPDATE accounts SET balance_minor = balance_minor + CASE id WHEN ADA THEN 5 ELSE -5 END WHERE id IN (ADA, BOB)", "", ada + bob},
		"the newest entry deleted": {"DELETE FROM ledger_entries WHERE account_id = ADA AND entry_no = 13", "", ada},
		"another entry deleted":    {"DELETE FROM ledger_entries WHERE account_id = ADA AND entry_no = 8", "", ada},
		"all entries deleted":      {"DELETE FROM ledger_entries WHERE account_id IN (ADA, BOB)", "", ada + bob},
		"an amount":                {"UPDATE ledger_entries SET amount_minor = 9 WHERE account_id = ADA AND entry_no = 9", "", ada},
		"a balance after":          {"UPDATE ledger_entries SET balance_after_minor = 0 WHERE account_id = BOB AND entry_no = 11", "", bob},
		"a currency":               {"UPDATE ledger_entries SET currency = 'EUR' WHERE account_id = BOB AND entry_no = 11", "", bob},
		"a number of entries":      {"UPDATE accounts SET entry_count = 12 WHERE id = BOB", "", bob},
		"one that is long ago":     {"UPDATE ledger_entries SET amount_minor = 9 WHERE account_id = ADA AND entry_no = 2", "", none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, nil)
			ids := map[string]uuid.UUID{ada: b.customer(t, 1000), bob: b.customer(t, 500)}
			for range 12 {
				b.process(t, b.pay(ids[ada], ids[bob], 10))
			}
			b.open(t, payments.Customer, "EUR") // without an entry

			damage := strings.NewReplacer("ADA", "'"+ids[ada].String()+"'", "BOB", "'"+ids[bob].String()+"'").Replace(c.damage)
			if _, err := b.owner.Exec(t.Context(), "ALTER TABLE ledger_entries DISABLE TRIGGER USER; "+damage); err != nil {
				t.Fatal(err)
			}

			sums, err := payments.Imbalances(t.Context(), b.owner)
			if err != nil || sums["USD"] != c.sum || len(sums) > 1 {
				t.Errorf("the balances sum to %v, want %q; %v", sums, c.sum, err)
			}
			want := []uuid.UUID{}
			for name, id := range ids {
				if strings.Contains(c.wrong, name) {
					want = append(want, id)
				}
			}
			slices.SortFunc(want, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
			for _, limit := range []int{1, 4, 100} { // there are 4 accounts
				if diff := cmp.Diff(want, wrongAccounts(t, b.owner, limit)); diff != "" {
					t.Errorf("%d at a time (-want +got):\n%s", limit, diff)
				}
			}
		})
	}
}

// wrongAccounts checks all accounts.
func wrongAccounts(t *testing.T, db *pgxpool.Pool, limit int) []uuid.UUID {
	t.Helper()
	all := []uuid.UUID{}
	for after := uuid.Nil; ; {
		wrong, next, err := payments.CheckAccounts(t.Context(), db, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, wrong...)
		if next == uuid.Nil {
			return all
		}
		after = next
	}
}

package main

import (
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/tools/rig"
)

const insertAccount = `INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor, created_at)
SELECT gen_random_uuid(), gen_random_uuid(), 'system', 'USD', $1, '2020-01-01'` // long ago: its event was dropped with its day

const insertPayment = `
INSERT INTO payments (id, tenant_id, status, version, amount_minor, currency, source_account, destination_account, processed_at, client_id,
  idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000001', 'completed', 1, 1, 'USD', gen_random_uuid(), gen_random_uuid(), now(),
  '00000000-0000-0000-0000-000000000002', 'k', '', 1, '', '', '' FROM generate_series(1, $1)`

func TestBooksThatDoNotBalance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		arg    string
		first  int      // answers that clients got
		want   []string // nothing: all is well
	}{
		"nothing happened":            {insertAccount, "0", 0, nil},
		"a payment that is not there": {insertAccount, "0", 1, []string{"there are [1 1 1 2] payments, keys, events and entries, but there are [0 0 0 0]"}},
		"a payment that nobody knows": {insertPayment, "1", 0, []string{
			"but there are [1 0 0 0]", "1 unbalanced payments", "1 payments without their answer", "1 payments without their event"}},
		"a key that paid twice":     {insertPayment, "2", 0, []string{"1 keys that took effect twice"}},
		"a balance without entries": {insertAccount, "5", 0, []string{"1 wrong balances"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t).URL
			before, err := countBooks(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			if err := rig.Execute(t.Context(), url, strings.ReplaceAll(c.change, "$1", c.arg)); err != nil {
				t.Fatal(err)
			}
			got := checkBooks(t.Context(), url, before, []int{c.first, c.first, c.first, 2 * c.first}, nil)
			if len(c.want) == 0 && got != nil {
				t.Error(got)
			}
			for _, want := range c.want {
				if got == nil || !strings.Contains(got.Error(), want) {
					t.Errorf("%v, want %q", got, want)
				}
			}
		})
	}
}

// A rate of charges that nobody asked for, or of one that was executed twice, is no result.
func TestChargeThatIsNotOursIsFound(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t).URL
	charge := invariant.PSPEntry{
		Kind: "charge", Reference: "ch_1", OperationID: "of nobody", AmountMinor: 1, Currency: "USD",
	}
	again := charge
	again.Reference = "ch_2"

	nothing := make([]int, 4)
	if err := checkBooks(t.Context(), url, nothing, nothing, []invariant.PSPEntry{}); err != nil {
		t.Error(err)
	}
	err := checkBooks(t.Context(), url, nothing, nothing, []invariant.PSPEntry{charge, again})
	for _, want := range []string{"1 " + invariant.ChargedTwice, "2 " + invariant.ChargedUnbooked} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
)

const insertAccount = `INSERT INTO accounts (id, tenant_id, kind, currency, balance_minor) VALUES (gen_random_uuid(), gen_random_uuid(), 'system', 'USD', $1)`

const insertPayment = `
INSERT INTO payments (id, tenant_id, status, version, amount_minor, currency, source_account, destination_account, processed_at, client_id,
  idempotency_key, fingerprint, fingerprint_version, method, route, request_id)
SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000001', 'completed', 1, 1, 'USD', gen_random_uuid(), gen_random_uuid(), now(),
  '00000000-0000-0000-0000-000000000002', 'k', '', 1, '', '', '' FROM generate_series(1, $1::int)`

func TestBooksThatDoNotBalanceAreNoResult(t *testing.T) {
	t.Parallel()
	conn, err := connect(t.Context(), testenv.Database(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for name, c := range map[string]struct {
		change string
		arg    int
		first  int // answers that clients got
		want   string
	}{
		"nothing happened":              {insertAccount, 0, 0, ""},
		"a payment that is not there":   {insertAccount, 0, 1, "1 first answers, but 0 payments"},
		"a payment that nobody knows":   {insertPayment, 1, 0, "0 first answers, but 1 payments"},
		"a key that paid twice":         {insertPayment, 2, -1, "1 keys with two payments"},
		"a payment without its entries": {insertPayment, 1, -1, "1 payments without balanced entries"},
		"a balance without entries":     {insertAccount, 5, 0, "1 wrong balances"},
	} {
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			defer tx.Rollback(t.Context())
			before, err := countAll(t.Context(), conn)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), c.change, c.arg); err != nil {
				return err
			}
			if c.first < 0 { // only what is there is looked at
				if before, err = countAll(t.Context(), conn); err != nil {
					return err
				}
			}
			got := checkBooks(t.Context(), conn, before, max(0, c.first))
			if c.want == "" && got != nil || c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", name, got, c.want)
			}
			return nil
		})
		if err != nil && !strings.Contains(err.Error(), "closed") {
			t.Fatal(err)
		}
	}
}

package payments_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// dropDays is weeks without upkeep: there is no partition of today, nor of the days to come.
func dropDays(t *testing.T, b *bank, table string) {
	t.Helper()
	if _, err := b.owner.Exec(t.Context(), fmt.Sprintf(`TRUNCATE %[1]s;
		DO $$ DECLARE p regclass; BEGIN
			FOR p IN SELECT inhrelid FROM pg_inherits WHERE inhparent = '%[1]s'::regclass LOOP EXECUTE format('DROP TABLE %%s', p); END LOOP;
		END $$`, table)); err != nil {
		t.Fatal(err)
	}
}

func TestMissingDayRefusesNoPayment(t *testing.T) {
	t.Parallel()
	for name, tables := range map[string][]string{
		"of the keys": {"idempotency_keys"}, "of the events": {"outbox_events"}, "of both": {"idempotency_keys", "outbox_events"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBank(t, nil)
			account := b.open(t, payments.Customer, "USD")
			for _, table := range tables {
				dropDays(t, b, table)
			}
			dump, err := b.owner.Begin(t.Context()) // pg_dump reads meanwhile
			if err != nil {
				t.Fatal(err)
			}
			defer dump.Rollback(context.WithoutCancel(t.Context()))
			if _, err := dump.Exec(t.Context(), `LOCK TABLE idempotency_keys, outbox_events IN ACCESS SHARE MODE`); err != nil {
				t.Fatal(err)
			}

			const batches, each = 20, 3
			begun := time.Now()
			var all errgroup.Group
			for range batches {
				all.Go(func() error {
					rs := make([]payments.Request, each)
					for i := range rs {
						rs[i] = b.pay(b.system, account, 1)
					}
					as, err := b.Process(context.WithoutCancel(t.Context()), rs)
					for _, a := range as {
						if a.State != idempotency.New || a.Response.Status != 201 {
							t.Errorf("%s, %d", a.State, a.Response.Status)
						}
					}
					return err
				})
			}
			if err := all.Wait(); err != nil {
				t.Error(err)
			}
			t.Logf("%d batches took %s", batches, time.Since(begun))

			var paid, events, balance int
			if err := b.owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM outbox_events WHERE event_type LIKE 'payment.%'),
				(SELECT balance_minor FROM accounts WHERE id = $1)`, account).Scan(&paid, &events, &balance); err != nil {
				t.Fatal(err)
			}
			if want := batches * each; paid != want || events != want || balance != want {
				t.Errorf("%d payments, %d events, balance %d: want %d", paid, events, balance, want)
			}
		})
	}
}

package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestClaimEndsWithTransaction(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	r := newRequest()
	one, other := begin(t, d.write), begin(t, d.write) // two sessions
	wantState(t, claim(t, one, r)[0], idempotency.New)
	wantState(t, claim(t, other, r)[0], idempotency.InProgress)
	if err := one.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantState(t, claim(t, other, r)[0], idempotency.New)
}

func TestCancelledAttemptEndsOnServer(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	d.run(t, newRequest()) // its COMMIT could not be cancelled; the connection is used again
	sleepers := func(want int) func() error {
		return func() (err error) {
			var n int
			err = d.owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'active' AND query LIKE 'SELECT pg_sleep%'`).Scan(&n)
			if err == nil && n != want {
				err = fmt.Errorf("%d statements run, want %d", n, want)
			}
			return err
		}
	}

	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := idempotency.Run(ctx, d.write, newRequest(), retention, func(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) {
			_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
			return idempotency.Response{}, err
		})
		ended <- err
	}()
	testenv.Eventually(t, 20*time.Second, sleepers(1))
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	testenv.Eventually(t, 20*time.Second, sleepers(0))
}

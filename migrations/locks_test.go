package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

// limit is the lock_timeout of payments.
const limit = 2 * time.Second

// holder holds a lock until the test ends it. Its application is called "a report".
func holder(t *testing.T, url, statement string) pgx.Tx {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = "a report"
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
	return tx
}

// paying changes an account's balance again and again until the test ends. It returns how many times so far, and the
// longest that one took.
func paying(t *testing.T, db *pgxpool.Pool) func() (n int, longest time.Duration) {
	t.Helper()
	account := uuid.New()
	exec(t, db, `INSERT INTO accounts (id, tenant_id, kind, currency) VALUES ($1, $1, 'system', 'USD')`, account)

	var mu sync.Mutex
	var n int
	var longest time.Duration
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			start := time.Now()
			_, err := db.Exec(ctx, `UPDATE accounts SET balance_minor = balance_minor + 1 WHERE id = $1`, account)
			if err != nil && ctx.Err() == nil {
				t.Errorf("a payment failed: %v", err)
				return
			}
			mu.Lock()
			n, longest = n+1, max(longest, time.Since(start))
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return func() (int, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		return n, longest
	}
}

func TestPaymentsGoOnWhileUpWaitsForALock(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	down(t, db.URL, 9)
	report := holder(t, db.URL, `SELECT FROM accounts`)
	paid := paying(t, db.Pool(t, ""))
	elsewhere := paying(t, testenv.Database(t).Pool(t, ""))

	// Payments go on between two attempts; the lock is there for the third.
	attempts, before := 0, 0
	var said []string
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	_, err := migrations.UpWith(ctx, db.URL, migrations.Locks{OnWait: func(who string) {
		attempts++
		n, _ := paid()
		testenv.Eventually(t, time.Minute, func() error {
			if now, _ := paid(); now < n+20 {
				return fmt.Errorf("%d payments, then %d: they wait as well", n, now)
			}
			return nil
		})
		said = append(said, who)
		if attempts == 2 {
			before = n
			if err := report.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}})
	if err != nil || attempts < 2 || before == 0 {
		t.Errorf("after %d attempts: %v", attempts, err)
	}
	if !slices.ContainsFunc(said, func(who string) bool { // it looks every 100 ms, if the machine lets it
		return strings.HasPrefix(who, "00010_cards.sql needs a lock on accounts, which pid ") && strings.HasSuffix(who, " (a report) holds")
	}) {
		t.Errorf("it says %q", said)
	}
	if err := migrations.Check(t.Context(), db.Pool(t, "")); err != nil {
		t.Error(err)
	}
	_, usual := elsewhere()
	if _, longest := paid(); longest > limit+usual {
		t.Errorf("a payment took %s, elsewhere %s", longest, usual)
	}
}

func TestUpGivesUpAndNamesWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	down(t, db.URL, 9)
	report := holder(t, db.URL, `SELECT FROM accounts`)
	var pid string
	if err := report.QueryRow(t.Context(), `SELECT pg_backend_pid()::text`).Scan(&pid); err != nil {
		t.Fatal(err)
	}

	want := "needs a lock on accounts, which pid " + pid + " (a report) holds"
	var applied []migrations.Migration
	var err error
	for range 3 { // it may be busy while it should look who holds the lock
		applied, err = migrations.UpWith(t.Context(), db.URL, migrations.Locks{Wait: time.Second})
		if err == nil || strings.Contains(err.Error(), want) {
			break
		}
	}
	if err == nil || len(applied) != 0 || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want %q", err, want)
	}

	// Nothing is left behind: the next run goes through.
	if err := report.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), db.URL); err != nil {
		t.Error(err)
	}
	if err := migrations.Check(t.Context(), db.Pool(t, "")); err != nil {
		t.Error(err)
	}
}

// It blocks no payment, so it need not hurry: one that gave up after half a second would never build an index beside
// transactions that are longer.
func TestAnIndexIsBuiltAfterALongTransaction(t *testing.T) {
	t.Parallel()
	db := testenv.Database(t)
	down(t, db.URL, 10)
	report := holder(t, db.URL, `LOCK TABLE accounts IN ROW EXCLUSIVE MODE`) // as one that writes
	owner := db.Pool(t, "")

	ended := make(chan error, 1)
	go func() {
		_, err := migrations.UpWith(t.Context(), db.URL, migrations.Locks{OnWait: func(who string) { t.Errorf("it gave up: %s", who) }})
		ended <- err
	}()
	testenv.Eventually(t, time.Minute, func() error {
		var waits bool
		err := owner.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND now() - query_start > '700 ms')`).Scan(&waits)
		if err == nil && !waits {
			err = errors.New("no index waits for longer than half a second")
		}
		return err
	})
	if err := report.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/idempotency"
)

// Planning looks at what a connection remembers of the table, and a partition may have come since.
func TestClaimFindsKeyWhilePartitionsAreMade(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(t *testing.T, tx pgx.Tx){
		"claimed before": func(t *testing.T, tx pgx.Tx) { claim(t, tx, newRequest()) },
		"read before":    func(t *testing.T, tx pgx.Tx) { mustExec(t, tx, `SELECT count(*) FROM idempotency_keys`) },
		"prepared before": func(t *testing.T, tx pgx.Tx) { // as the driver does it for the first look-up of a connection
			if _, err := tx.Prepare(t.Context(), "p", `SELECT FROM idempotency_keys`); err != nil {
				t.Fatal(err)
			}
		},
		"nothing before": func(*testing.T, pgx.Tx) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			makeDay(t, d.owner, -1)
			dropDay(t, d.owner, 0)
			pool := openPool(t, d.url, nil)
			warm := begin(t, pool)
			claim(t, warm, newRequest()) // from now on this connection knows the partitions by heart
			if err := warm.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}

			tx := begin(t, pool)
			before(t, tx)
			r := newRequest()
			wantState(t, d.run(t, r), idempotency.New) // makes today's partition and stores the key there
			wantState(t, claim(t, tx, again(r))[0], idempotency.Replay)
		})
	}
}

// An open transaction that makes partitions blocks no session and hides no key.
func TestOpenMakerHidesNoKey(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	makeDay(t, d.owner, -1)
	yesterday := newRequest()
	insert(t, d.owner, yesterday, 24*time.Hour)
	for day := range 8 {
		dropDay(t, d.owner, day)
	}
	maker := begin(t, d.owner)
	mustExec(t, maker, `SELECT idempotency_keys_make_partitions(7)`)

	for range 3 { // on new connections
		pool := openPool(t, d.url, nil)
		a, err := idempotency.Run(t.Context(), pool, again(yesterday), retention, work(yesterday))
		if err != nil || a.State != idempotency.Replay {
			t.Errorf("while partitions are made: %s, %v", a.State, err)
		}
	}
	today := newRequest()
	done := make(chan error, 1)
	go func() { // it meets the missing day, and waits for who makes it
		_, err := idempotency.Run(t.Context(), d.write, today, retention, work(today))
		done <- err
	}()
	if err := maker.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantState(t, d.run(t, again(yesterday)), idempotency.Replay)
	wantState(t, d.run(t, again(today)), idempotency.Replay)
}

// Weeks without upkeep, and then everybody at once.
func TestMissingDayIsMade(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, d database){
		"quiet":              func(*testing.T, database) {},
		"pg_dump is reading": func(t *testing.T, d database) { readAll(t, d.owner) },
		"a transaction that wrote stays open": func(t *testing.T, d database) {
			makeDay(t, d.owner, -30)
			insert(t, begin(t, d.owner), newRequest(), 30*24*time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t)
			for day := range 8 {
				dropDay(t, d.owner, day)
			}
			makeDay(t, d.owner, -20)
			prepare(t, d)

			var all errgroup.Group
			same := newRequest()
			for i := range 40 {
				all.Go(func() error {
					r := newRequest()
					if i%4 == 0 {
						r = again(same)
					}
					_, err := idempotency.Run(context.Background(), d.write, r, retention, work(r))
					return err
				})
			}
			if err := all.Wait(); err != nil {
				t.Error(err)
			}
			if n := d.effects(t, same); n != 1 {
				t.Errorf("worked %d times under one key", n)
			}
			if n := d.count(t, "effects"); n != 31 {
				t.Errorf("%d requests were worked on, want 31", n)
			}
			if got := len(days(t, d.owner)); got < 9 {
				t.Errorf("%d partitions, want a week ahead", got)
			}
		})
	}
}

// readAll does what pg_dump does to the tables, until the test ends.
func readAll(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	mustExec(t, begin(t, pool), `LOCK TABLE idempotency_keys, outbox_events IN ACCESS SHARE MODE`)
}

func TestMissingDayMatchesNothingElse(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	dropDay(t, d.owner, 0)
	const insert = `INSERT INTO idempotency_keys (tenant_id, client_id, key, key_hash, day, fingerprint, fingerprint_version, request_id, status, content_type, location, body)
		SELECT gen_random_uuid(), gen_random_uuid(), $1, sha256('')::bytea, (now() AT TIME ZONE 'utc')::date + $2::int, sha256('')::bytea, 1, '', 201, '', '', ''`
	mustExec(t, d.owner, `ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_key_hash_check`)

	_, missing := d.write.Exec(t.Context(), insert, "k", 0)
	_, check := d.write.Exec(t.Context(), insert, "", 1)
	_, other := d.write.Exec(t.Context(), `INSERT INTO payments DEFAULT VALUES`)
	for err, want := range map[error]bool{
		missing: true, check: false, other: false, nil: false, &pgconn.PgError{Code: "23514", TableName: "things"}: false,
		errors.Join(idempotency.ErrOutcomeUnknown, missing): false,
	} {
		if got := idempotency.MissingDay(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// A writer that cannot make the day gives up.
func TestDayThatCannotBeMadeIsAnError(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	dropDay(t, d.owner, 0)
	mustExec(t, d.owner, `REVOKE EXECUTE ON FUNCTION idempotency_keys_make_partitions FROM api_write`)
	r := newRequest()
	if _, err := idempotency.Run(t.Context(), d.write, r, retention, work(r)); code(err) != "42501" {
		t.Errorf("got %v", err)
	}
	if n := d.effects(t, r); n != 0 {
		t.Errorf("worked %d times", n)
	}
}

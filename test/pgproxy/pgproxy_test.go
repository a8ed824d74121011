package pgproxy

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/testenv"
)

func TestFates(t *testing.T) {
	t.Parallel()
	for fate, want := range map[Fate]struct{ heard, done bool }{
		Pass:        {true, true},
		LoseReply:   {false, true},
		LoseRequest: {false, false},
		Cut:         {false, true}, // here at least: the server reads what was sent before the end
		Stall:       {false, false},
	} {
		t.Run(fate.String(), func(t *testing.T) {
			t.Parallel()
			db := testenv.EmptyDatabase(t)
			p := Start(t, db.URL, func(conn, commit int) Fate {
				if conn == 1 && commit == 2 {
					return fate
				}
				return Pass
			})
			conn, err := pgx.Connect(t.Context(), p.URL(db.URL))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			write := func(patience time.Duration, sql string) error {
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				return tx.Commit(ctx)
			}
			if err := write(time.Minute, `CREATE TABLE rows (n int)`); err != nil {
				t.Fatal(err)
			}
			patience := time.Minute
			if fate == Stall {
				patience = time.Second
			}
			if err := write(patience, `INSERT INTO rows VALUES (1)`); (err == nil) != want.heard {
				t.Errorf("the client was told %v", err)
			}

			// Not done is final only when the backend is gone: until then a COMMIT may still arrive.
			owner := db.Pool(t, "")
			count := func(sql string) (n int) {
				if err := owner.QueryRow(t.Context(), sql, conn.PgConn().PID()).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			const backends = `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`
			if fate == Stall {
				if count(backends+` AND state = 'idle in transaction'`) != 1 {
					t.Error("the backend does not keep its transaction open")
				}
				p.Release()
			}
			if fate != Pass {
				testenv.Eventually(t, 10*time.Second, func() error {
					if n := count(backends); n > 0 {
						return fmt.Errorf("%d backends", n)
					}
					return nil
				})
			}
			if n := count(`SELECT count(*) FROM rows WHERE $1::int IS NOT NULL`); (n == 1) != want.done {
				t.Errorf("%d rows", n)
			}
			if conn.IsClosed() == want.heard {
				t.Error("the connection broke, or did not")
			}
		})
	}
}

func TestSetDown(t *testing.T) {
	t.Parallel()
	db := testenv.EmptyDatabase(t)
	p := Start(t, db.URL, func(int, int) Fate { return Pass })
	conn, err := pgx.Connect(t.Context(), p.URL(db.URL))
	if err != nil {
		t.Fatal(err)
	}
	p.SetDown(true)
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlived its server")
	}
	if _, err := pgx.Connect(t.Context(), p.URL(db.URL)); err == nil {
		t.Error("there was a connection to a server that is down")
	}
	p.SetDown(false)
	conn, err = pgx.Connect(t.Context(), p.URL(db.URL))
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

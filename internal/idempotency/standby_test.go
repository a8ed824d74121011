package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/migrations"
)

// newReplicatedDatabase has a server of its own: a synchronous standby is a setting of the server.
// Its owner does not wait for it.
func newReplicatedDatabase(t *testing.T) database {
	t.Helper()
	p, err := embedded.StartPostgres(t.Context(), embedded.PostgresOptions{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	owner := p.URL("postgres", "postgres")
	if err := embedded.CreateRoles(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	d := database{owner: openPool(t, owner+"&synchronous_commit=local", nil), url: p.URL("api_write", "postgres")}
	d.write = d.poolAs(t, "repeats")
	mustExec(t, d.owner, `CREATE TABLE effects (key text NOT NULL); GRANT SELECT, INSERT ON effects TO api_write`)
	return d
}

// poolAs is a pool as a program has it, known to the server by name.
func (d database) poolAs(t *testing.T, name string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = name
	config.ConnConfig.RuntimeParams["statement_timeout"] = "4s" // must not end a COMMIT that waits
	config.ConnConfig.OnNotice = idempotency.OnNotice
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// loseStandby returns once every COMMIT waits for a standby that does not exist.
func (d database) loseStandby(t *testing.T) {
	t.Helper()
	mustExec(t, d.owner, `ALTER SYSTEM SET synchronous_standby_names = 'absent'`)
	mustExec(t, d.owner, `SELECT pg_reload_conf()`)
	until(t, "a commit waits for the standby", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := d.write.Exec(ctx, `SELECT pg_logical_emit_message(true, 'test', '')`)
		return err != nil
	})
}

// abandonStandby returns once no COMMIT waits any more.
func (d database) abandonStandby(t *testing.T) {
	t.Helper()
	mustExec(t, d.owner, `ALTER SYSTEM RESET synchronous_standby_names`)
	mustExec(t, d.owner, `SELECT pg_reload_conf()`)
	until(t, "no commit waits for the standby", func() (none bool) {
		if err := d.owner.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`).Scan(&none); err != nil {
			t.Fatal(err)
		}
		return none
	})
}

// until polls.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for tick := time.Tick(10 * time.Millisecond); !holds(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// whenever calls the SQL function do on each backend of name that waits for the standby, until
// stop.
func (d database) whenever(t *testing.T, name, do string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.Tick(20 * time.Millisecond); ctx.Err() == nil; <-tick {
			_, err := d.owner.Exec(ctx, `SELECT `+do+`(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = $1`, name)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// breakWhenWaiting breaks the connection while its server waits for the standby.
func (d database) breakWhenWaiting(t *testing.T) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		c := tx.Conn().PgConn()
		pid, broken := c.PID(), make(chan struct{})
		go func() {
			defer close(broken)
			until(t, "it waits", func() (waits bool) {
				err := d.owner.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = $1)`, pid).Scan(&waits)
				return waits || err != nil
			})
			_ = c.Conn().Close()
		}()
		err := tx.Commit(ctx)
		<-broken
		return err
	}
}

// An absent standby must cost availability, not payments: a failover takes back what it did not
// get.
func TestAnswerIsOnSynchronousStandby(t *testing.T) {
	t.Parallel()
	d := newReplicatedDatabase(t)
	d.loseStandby(t)
	poolAs := func(name string) *pgxpool.Pool { return d.poolAs(t, name) } // closed at the end, when no server holds a connection
	requests := map[string]idempotency.Request{}
	t.Run("while it is away", func(t *testing.T) {
		for name, c := range map[string]struct {
			do      string                              // what an operator does to each COMMIT that waits
			commit  func(context.Context, pgx.Tx) error // how the first transaction commits
			visible int                                 // whether the operator made it visible; we never do
		}{
			"the deadline passes":           {},
			"the connection is lost":        {commit: d.breakWhenWaiting(t)},
			"an operator cancels":           {do: "pg_cancel_backend", visible: 1},
			"an operator ends the sessions": {do: "pg_terminate_backend", visible: 1},
		} {
			r := newRequest()
			requests[name] = r
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := &commits{db: poolAs(name)}
				if c.commit != nil {
					db.by = append(db.by, c.commit)
				}
				if c.do != "" {
					defer d.whenever(t, name, c.do)()
				}
				start := time.Now()
				if a, err := idempotency.Run(t.Context(), db, r, retention, work(r)); !errors.Is(err, idempotency.ErrOutcomeUnknown) {
					t.Errorf("the first request: %s, %v", a.State, err)
				}
				if took := time.Since(start); took > 30*time.Second {
					t.Errorf("it took %s", took)
				}
				if n := d.effects(t, r); n != c.visible {
					t.Errorf("%d effects are visible, want %d", n, c.visible)
				}
				// The client repeats. What is not visible is still being worked on.
				a, err := idempotency.Run(t.Context(), db, again(r), retention, work(r))
				if c.visible == 1 && !errors.Is(err, idempotency.ErrOutcomeUnknown) || c.visible == 0 && (err != nil || a.State != idempotency.InProgress) {
					t.Errorf("the repeat: %s, %v", a.State, err)
				}
				if c.visible == 0 {
					return
				}

				// What is visible is shown to a reader, who is promised nothing, but not found for
				// a repeat.
				wantState(t, d.peek(t, r), idempotency.Replay)
				a, err = idempotency.Find(t.Context(), db, again(r), retention)
				if !errors.Is(err, idempotency.ErrOutcomeUnknown) {
					t.Errorf("the repeat that only looks: %s, %v", a.State, err)
				}
			})
		}
	})
	d.abandonStandby(t)
	for name, r := range requests {
		wantState(t, d.run(t, again(r)), idempotency.Replay)
		if n := d.effects(t, r); n != 1 {
			t.Errorf("%s: worked %d times", name, n)
		}
	}
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/embedded"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
	"github.com/oncepay/oncepay/migrations"
)

// replicated is a primary and its standby, both of this test alone.
type replicated struct {
	database
	primary, standby *embedded.Postgres
}

func newReplicated(t *testing.T, synchronous bool) *replicated {
	t.Helper()
	settings := map[string]string{"fsync": "off", "autovacuum": "off"}
	run := func(dir string) *embedded.Postgres {
		p, err := embedded.StartPostgres(t.Context(), embedded.PostgresOptions{Dir: dir, Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Stop(context.Background()) })
		return p
	}
	dir, err := os.MkdirTemp("", "oncepay-replicated-") // t.TempDir's parent is closed to the server's user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	// A copy of a server that was shut down becomes its standby.
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	first := run(one)
	if err := embedded.CreateRoles(t.Context(), first.URL("postgres", "postgres")); err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), first.URL("postgres", "postgres")); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", one, two).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(two, "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}

	r := &replicated{primary: run(one)}
	url := r.primary.URL("postgres", "postgres")
	file := filepath.Join(two, "data", "postgresql.auto.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, "primary_conninfo = '%s'\n", url), 0o644); err != nil {
		t.Fatal(err)
	}
	r.standby = run(two)
	r.database = database{owner: r.pool(t, r.primary, "postgres"), relay: r.pool(t, r.primary, "relay")}
	r.exec(t, `CREATE TABLE aggregates (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0)`)
	if synchronous {
		r.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
		r.exec(t, `SELECT pg_reload_conf()`)
	}
	return r
}

func (r *replicated) pool(t *testing.T, p *embedded.Postgres, user string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), p.URL(user, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// caughtUp waits until the standby has what the primary has.
func (r *replicated) caughtUp(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		if !ask[bool](t, r.database, `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_insert_lsn())`) {
			return errors.New("the standby is behind")
		}
		return nil
	})
}

// cutOff ends the replication: the standby loses what the primary commits from then on.
func (r *replicated) cutOff(t *testing.T) {
	t.Helper()
	s := database{owner: r.pool(t, r.standby, "postgres")}
	s.exec(t, `ALTER SYSTEM SET primary_conninfo = ''`)
	s.exec(t, `SELECT pg_reload_conf()`)
	testenv.Eventually(t, soon, func() error {
		if ask[bool](t, r.database, `SELECT EXISTS (SELECT FROM pg_stat_replication)`) {
			return errors.New("the standby is still fed")
		}
		return nil
	})
}

// failOver kills the primary and promotes the standby.
func (r *replicated) failOver(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(r.primary.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.promote(t)
}

// promote makes the standby a primary. r is the new one from then on.
func (r *replicated) promote(t *testing.T) {
	t.Helper()
	r.database = database{owner: r.pool(t, r.standby, "postgres"), relay: r.pool(t, r.standby, "relay")}
	r.exec(t, `SELECT pg_promote()`)
}

// The old primary dies between the acknowledgement of a batch and the cursor's move.
func TestFailoverBeforeTheCursorMoved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name              string
		synchronous, lose bool
	}{
		{"synchronous", true, false},
		{"asynchronous, nothing lost", false, false},
		{"asynchronous, an event lost", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, b := newReplicated(t, c.synchronous), &broker{}
			old := start(t, r.relay, b.Open, nil)
			next(t, old.leading, "a leader")
			want := r.commit(t, "a", "b")
			r.movedTo(t, 1)
			r.caughtUp(t)

			release := r.holdCursor(t)
			want = append(want, r.commit(t, "a")...)
			b.waitFor(t, 3)
			want = append(want, r.commit(t, "c")...)
			b.waitFor(t, 4)
			if c.lose {
				r.cutOff(t)
				r.commit(t, "a")
				b.waitFor(t, 5)
			} else {
				r.caughtUp(t)
			}
			r.failOver(t)
			release()
			_ = next(t, old.errors, "the end of the term")
			_ = old.stop()

			b.kept = b.progress()
			r.exec(t, `UPDATE outbox_cursors SET lease_until = clock_timestamp()`) // it has run out
			if c.lose {
				refuses(t, r.database, b)
				return
			}
			follower := start(t, r.relay, b.Open, nil)
			want = append(want, r.commit(t, "a", "b", "c")...)
			b.waitFor(t, len(want))
			r.sentAll(t)
			if got := b.ids(); !slices.Equal(got, want) || len(follower.errors) > 0 {
				t.Errorf("the broker has %v, want %v", got, want)
			}
		})
	}
}

// A pooler moves a leader's connections to the promoted standby, and the leader notices nothing.
// New events have the ids of lost ones that it has passed: it must not send what comes after them.
func TestFailoverBehindPooler(t *testing.T) {
	t.Parallel()
	r, b := newReplicated(t, false), &broker{}
	server := func(p *embedded.Postgres) *pgx.ConnConfig {
		cfg, err := pgx.ParseConfig(p.URL("relay", "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	var port atomic.Uint32 // of the server that connections go to
	port.Store(uint32(server(r.primary).Port))
	cfg, err := pgxpool.ParseConfig(r.primary.URL("relay", "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.Port = uint16(port.Load())
		return nil
	}
	cfg.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) {
		return uint32(c.Config().Port) == port.Load(), nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)

	leader := start(t, pool, b.Open, nil)
	next(t, leader.leading, "a leader")
	r.commit(t, "a")
	r.movedTo(t, 1)
	r.caughtUp(t)
	r.cutOff(t)
	r.commit(t, "a", "a") // lost
	b.waitFor(t, 3)
	r.movedTo(t, 2)

	r.promote(t)
	testenv.Eventually(t, soon, func() error {
		if ask[bool](t, r.database, `SELECT pg_is_in_recovery()`) {
			return errors.New("the standby is not promoted yet")
		}
		return nil
	})
	// A standby's sequence is ahead by up to 32; this one is not.
	r.exec(t, `SELECT setval(pg_get_serial_sequence('outbox_events', 'id'), 1)`)
	r.commit(t, "a", "a", "a") // ids 2 to 4
	port.Store(uint32(server(r.standby).Port))

	if err := next(t, leader.errors, "the end of the term"); !errors.Is(err, relay.ErrFenced) {
		t.Errorf("the term ended with %v, want ErrFenced", err)
	}
	if n := len(b.received()); n != 3 {
		t.Errorf("%d events were sent, want 3: %v", n, b.ids())
	}
}

// A dead letter is a row like any other: an asynchronous standby may have its event and lack it. Then
// the event is on no topic, and nothing says that it has to be sent.
func TestFailoverThatLostDeadLetters(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"letters kept": false, "letters lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b, p := newDatabase(t), &broker{}, &picky{}
			r := start(t, d.relay, p.open(b), nil)
			tx := d.begin(t)
			p.refuse(changeAll(t, tx, "parked")...) // before the relay may read it
			commit(t, tx)
			testenv.Eventually(t, soon, func() error {
				if n := len(letters(t, d)); n != 1 {
					return fmt.Errorf("%d dead letters", n)
				}
				return nil
			})
			d.sentAll(t)
			d.exec(t, `CREATE TABLE standby AS SELECT batches, last_id, seen FROM outbox_cursors`)

			d.commit(t, "parked", "flowing")
			b.waitFor(t, 1)
			d.sentAll(t)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}

			b.kept = b.progress()
			d.exec(t, `UPDATE outbox_cursors c
				SET batches = s.batches, last_id = s.last_id, seen = s.seen FROM standby s`)
			if lost {
				d.exec(t, `DELETE FROM outbox_dead_letters WHERE refusal IS NULL`)
				refuses(t, d, b)
				return
			}
			start(t, d.relay, p.open(b), nil)
			d.commit(t, "flowing")
			b.waitFor(t, 2)
			d.sentAll(t)
			if got := of(b.received(), "flowing"); len(b.received()) != 2 || len(got) != 2 {
				t.Errorf("the broker has %v", b.received())
			}
		})
	}
}

// An operator who puts the cursor back has dead letters sent like all other events.
func TestProgressAheadOfSentDeadLetter(t *testing.T) {
	t.Parallel()
	d, b, p := newDatabase(t), &broker{}, &picky{}
	r := start(t, d.relay, p.open(b), nil)
	next(t, r.leading, "a leader")
	d.exec(t, `CREATE TABLE beginning AS SELECT batches, last_id, seen FROM outbox_cursors`)
	putBack := func() {
		t.Helper()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		d.exec(t, `UPDATE outbox_cursors c
			SET batches = s.batches, last_id = s.last_id, seen = s.seen FROM beginning s`)
	}

	tx := d.begin(t)
	p.refuse(changeAll(t, tx, "a")...) // before the relay may read it
	commit(t, tx)
	testenv.Eventually(t, soon, func() error {
		if n := len(letters(t, d)); n != 1 {
			return fmt.Errorf("%d dead letters", n)
		}
		return nil
	})
	d.sentAll(t)
	p.refuse()
	if err := relay.RetryDeadLetter(t.Context(), d.relay, "main", letters(t, d)[0].ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, soon, func() error {
		if got := letters(t, d); got[0].State != "sent" {
			return fmt.Errorf("dead letters: %+v", got)
		}
		return nil
	})
	putBack()
	r = start(t, d.relay, p.open(b), nil)
	b.waitFor(t, 2)
	d.sentAll(t)
	putBack() // as if the last move had been lost

	b.kept = b.progress()
	start(t, d.relay, p.open(b), nil)
	d.commit(t, "a")
	b.waitFor(t, 3)
	d.sentAll(t)
	if n := len(b.received()); n != 3 {
		t.Errorf("%d events were sent, want 3", n)
	}
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestFailedBatchIsSentAgainUnderSameIDs(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	var sent [][]uuid.UUID
	var fail atomic.Int32
	fail.Store(3)
	b.onPublish = func(_ context.Context, batch []relay.Message) (int, error) {
		var ids []uuid.UUID
		for _, m := range batch {
			ids = append(ids, m.EventID)
		}
		sent = append(sent, ids)
		if fail.Add(-1) >= 0 {
			return 0, errors.New("broker says no")
		}
		return 0, nil
	}
	want := d.commit(t, "a", "b", "a")
	start(t, d.relay, b.Open, nil)
	b.waitFor(t, 3)
	if len(sent) != 4 {
		t.Fatalf("%d attempts, want 4", len(sent))
	}
	for i, ids := range sent {
		if !slices.Equal(ids, want) {
			t.Errorf("attempt %d sent %v, want %v", i+1, ids, want)
		}
	}
	if b.opened != 4 || b.open != 1 {
		t.Errorf("%d publishers were opened and %d are open, want 4 and 1", b.opened, b.open)
	}
	complete(t, b.received(), want)
}

func TestHalfBatchIsFinishedInOrder(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	var attempts atomic.Int32
	b.onPublish = func(_ context.Context, batch []relay.Message) (int, error) {
		if attempts.Add(1)%2 == 1 {
			return len(batch) / 2, errors.New("no answer")
		}
		return 0, nil
	}
	var want []uuid.UUID
	for range 6 {
		want = append(want, d.commit(t, "a", "b", "a", "c")...)
	}
	start(t, d.relay, b.Open, func(r *relay.Relay) { r.Batch = 8 })
	b.waitFor(t, len(want)+3*4)
	seen := map[uuid.UUID]bool{}
	firsts := slices.DeleteFunc(b.received(), func(m relay.Message) bool {
		defer func() { seen[m.EventID] = true }()
		return seen[m.EventID]
	})
	complete(t, firsts, want)
}

func TestBrokerThatDoesNotOpenIsWaitedOut(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	var attempts atomic.Int32
	r := start(t, d.relay, func(ctx context.Context, relay, cursor string) (relay.Publisher, *relay.Progress, error) {
		if attempts.Add(1) <= 3 {
			return nil, nil, errors.New("no such host")
		}
		return b.Open(ctx, relay, cursor)
	}, nil)
	want := d.commit(t, "a")
	b.waitFor(t, 1)
	complete(t, b.received(), want)
	if len(r.errors) != 3 {
		t.Errorf("%d errors were told, want 3", len(r.errors))
	}
}

func TestDatabaseAwayIsWaitedOut(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	r := start(t, d.relay, b.Open, func(r *relay.Relay) { r.Lease = 600 * time.Millisecond })
	want := d.commit(t, "a")
	b.waitFor(t, 1)
	d.exec(t, `ALTER ROLE relay IN DATABASE `+d.Name+` SET default_transaction_read_only = on`)
	d.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'relay'`)
	want = append(want, d.commit(t, "a")...) // with nothing to send it would not notice
	_ = next(t, r.errors, "an error")
	_ = next(t, r.errors, "another error")
	d.exec(t, `ALTER ROLE relay IN DATABASE `+d.Name+` RESET default_transaction_read_only`)
	d.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'relay'`)
	testenv.Eventually(t, soon, func() error { // the first may be sent again
		if got := b.ids(); got[0] != want[0] || got[len(got)-1] != want[1] {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

// A read that takes longer than its connection allows is one behind a long absence: it must come to its end all the same, and the
// relay must stay leader. Here it waits for a lock.
func TestLongReadKeepsLease(t *testing.T) {
	t.Parallel()
	const lease, limit = 6 * time.Second, 500 * time.Millisecond
	d, b := newDatabase(t), &broker{}
	config, err := pgxpool.ParseConfig(d.URLAs("relay"))
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(limit.Milliseconds(), 10)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r := start(t, pool, b.Open, func(r *relay.Relay) { r.Lease = lease })
	d.commit(t, "a")
	b.waitFor(t, 1)
	tx := d.begin(t)
	lockToday(t, tx)
	testenv.Eventually(t, soon, func() error {
		if !ask[bool](t, d, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = 'relay'
			AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > $1::interval)`, 2*lease) {
			return errors.New("no read has been waiting for long")
		}
		return nil
	})
	if !ask[bool](t, d, `SELECT lease_until > clock_timestamp() FROM outbox_cursors`) {
		t.Error("the lease ran out meanwhile")
	}
	changeAll(t, tx, "a")
	commit(t, tx)
	b.waitFor(t, 2)
	if len(r.errors) > 0 {
		t.Errorf("the term ended: %v", <-r.errors)
	}
}

// lockToday holds up who reads the outbox, and not who begins to.
func lockToday(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox_events_`+time.Now().UTC().Format("20060102")); err != nil {
		t.Fatal(err)
	}
}

// silent is a connection that can fall silent: what is written is lost, and no answer comes.
type silent struct {
	net.Conn
	cut *atomic.Bool
}

func (c silent) Write(b []byte) (int, error) {
	if c.cut.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// fallible opens a pool whose connections fall silent when cut is called: what is written goes nowhere. Later ones work, unless
// gone is set.
func (d database) fallible(t testing.TB) (pool *pgxpool.Pool, cut func(), gone *atomic.Bool) {
	t.Helper()
	config, err := pgxpool.ParseConfig(d.URLAs("relay"))
	if err != nil {
		t.Fatal(err)
	}
	var fuse atomic.Pointer[atomic.Bool]
	fuse.Store(new(atomic.Bool))
	gone = new(atomic.Bool)
	dialled := make(chan net.Conn, 1000)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if gone.Load() {
			return nil, errors.New("no route to host")
		}
		conn, err := dial(ctx, network, address)
		if err == nil {
			dialled <- conn
		}
		return silent{conn, fuse.Load()}, err
	}
	if pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for len(dialled) > 0 {
			_ = (<-dialled).Close() // the pool would wait for an answer from each
		}
		pool.Close()
	})
	return pool, func() { fuse.Swap(new(atomic.Bool)).Store(true) }, gone
}

func TestRunReturnsDespiteSilentDatabase(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	pool, cut, gone := d.fallible(t)
	hold, sending := make(chan struct{}), make(chan struct{}, 10)
	b.onPublish = func(context.Context, []relay.Message) (int, error) { sending <- struct{}{}; <-hold; return 0, nil }
	r := start(t, pool, b.Open, func(r *relay.Relay) { r.Lease = time.Second })
	d.commit(t, "a")
	next(t, sending, "a batch")
	gone.Store(true)
	cut() // so the cursor's move is not answered
	close(hold)
	b.waitFor(t, 1)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestStandbyLeadsDespiteSilentConnection(t *testing.T) {
	t.Parallel()
	d, b := newDatabase(t), &broker{}
	leader := start(t, d.relay, b.Open, nil)
	next(t, leader.leading, "a leader")
	pool, cut, _ := d.fallible(t)
	standby := start(t, pool, b.Open, func(r *relay.Relay) { r.Lease = time.Second })
	testenv.Eventually(t, soon, func() error {
		if pool.Stat().TotalConns() == 0 {
			return errors.New("the standby has not looked yet")
		}
		return nil
	})
	cut()
	if err := leader.stop(); err != nil {
		t.Fatal(err)
	}
	if !next(t, standby.leading, "the standby to lead") {
		t.Error("the standby gave up a lead that it never had")
	}
}

func TestRestoredDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"another cluster":  `UPDATE outbox_cursors SET system_identifier = system_identifier + 1`,
		"another database": `UPDATE outbox_cursors SET database_oid = 1`,
		"a transaction of the future": `INSERT INTO outbox_events (xid, aggregate_type, aggregate_id, event_type, payload)
			VALUES ((pg_current_xact_id()::text::bigint + 1000000000)::text::xid8, 'things', 'a', 'thing.changed', '')`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, b := newDatabase(t), &broker{}
			r := start(t, d.relay, b.Open, nil)
			d.commit(t, "a")
			b.waitFor(t, 1)
			_ = r.stop()
			d.exec(t, change)
			d.commit(t, "a")
			refused := relay.Relay{DB: d.relay, Open: b.Open, Name: "main"}
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			if err := refused.Run(ctx); !errors.Is(err, relay.ErrRestored) {
				t.Errorf("Run returned %v", err)
			}
			if got := len(b.received()); got != 1 {
				t.Errorf("%d messages, want 1", got)
			}
			if token := ask[int64](t, d, `SELECT fencing_token FROM outbox_cursors`); token != 1 {
				t.Errorf("fencing token %d, want 1", token)
			}
		})
	}
}

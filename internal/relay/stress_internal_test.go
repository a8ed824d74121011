package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// cursor is what the stress is put on: ours, or one of the weaker ones.
type cursor struct {
	start Position
	read  func(ctx context.Context, db *pgxpool.Pool, p Position) ([]Message, Position, error)
}

// ours is all that the stress knows of the reader.
func ours(limit int) cursor {
	return cursor{Position{Seen: "3:3:"}, func(ctx context.Context, db *pgxpool.Pool, p Position) ([]Message, Position, error) {
		var b batch
		if err := b.read(ctx, db, limit, p); err != nil {
			return nil, p, err
		}
		return b.messages(), b.next, nil
	}}
}

const (
	writers = 24
	hot     = 5  // aggregates that they all change
	rounds  = 12 // transactions of each writer while the held ones are open, and again when they have ended
)

// stress is a database with concurrent writers and a cursor that reads behind them.
type stress struct {
	t      *testing.T
	db     *testenv.DB
	pool   *pgxpool.Pool // the writers'
	relay  *pgxpool.Pool
	log    *readLog
	cursor cursor
	at     Position
}

func newStress(t *testing.T, c cursor) *stress {
	s := &stress{t: t, db: testenv.Database(t), log: newReadLog(), cursor: c, at: c.start}
	config, err := pgxpool.ParseConfig(s.db.URL)
	s.check(err)
	config.MaxConns = writers
	s.pool, err = pgxpool.NewWithConfig(t.Context(), config)
	s.check(err)
	t.Cleanup(s.pool.Close)
	s.relay = s.db.Pool(t, "relay")
	_, err = s.pool.Exec(t.Context(), `CREATE TABLE aggregates (id int PRIMARY KEY, version bigint NOT NULL DEFAULT 0); CREATE TABLE notes (n int)`)
	s.check(err)
	_, err = s.pool.Exec(t.Context(), `INSERT INTO aggregates (id) SELECT generate_series(1, $1)`, hot)
	s.check(err)
	return s
}

func (s *stress) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// run puts the whole stress on a cursor with this limit. Four transactions that have written are open while the writers
// are at work: two in this database, one in another of the same server, and a prepared one. They are older than all that is
// read meanwhile, and stay open until all of it was read: no clock is needed to see that nobody waits for them.
func (s *stress) run(limit int) {
	prepared, long, longer := s.begin(s.db.URL), s.begin(s.db.URL), s.begin(s.db.URL)
	elsewhere := s.begin(testenv.EmptyDatabase(s.t).URL)
	s.write(elsewhere)
	events := s.interleave(limit, prepared, long, longer)
	end := s.prepare(prepared)

	s.writeWhileReading()
	s.readAll()

	// Each has more stragglers than a batch holds. Two share the first chunk; the prepared one's become visible between that
	// and the next, and some of them have lower ids than what has just gone out.
	s.check(long.Commit(s.t.Context()))
	s.check(longer.Commit(s.t.Context()))
	s.log.commit(events[1]...)
	s.log.commit(events[2]...)
	s.read()
	_, err := s.pool.Exec(s.t.Context(), end)
	s.check(err)
	s.log.commit(events[0]...)
	s.check(elsewhere.Commit(s.t.Context()))
	s.writeWhileReading()
	s.readAll()

	s.hideAboveXmax()
}

func (s *stress) connect(url string) *pgx.Conn {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), url)
	s.check(err)
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// begin opens a transaction on a connection of its own. It is rolled back when the test ends.
func (s *stress) begin(url string) pgx.Tx {
	s.t.Helper()
	tx, err := s.connect(url).Begin(s.t.Context())
	s.check(err)
	return tx
}

// write makes tx a transaction that has written, in whatever database.
func (s *stress) write(tx pgx.Tx) {
	s.t.Helper()
	_, err := tx.Exec(s.t.Context(), `CREATE TABLE written ()`)
	s.check(err)
}

// interleave lets the transactions take turns in appending events, each to an aggregate of its own, until each has more
// than two batches. Each turn is a savepoint; with those of makeSubtransactions they are more than a snapshot can list (64).
func (s *stress) interleave(limit int, txs ...pgx.Tx) (events [][]uuid.UUID) {
	s.t.Helper()
	const turns = 4
	events = make([][]uuid.UUID, len(txs))
	for turn := range turns {
		for i, tx := range txs {
			var es []outbox.Event
			for range limit/2 + 1 {
				e := newEvent(fmt.Sprint("held-", i), int64(len(events[i])+1))
				events[i], es = append(events[i], e.ID), append(es, e)
			}
			s.check(pgx.BeginFunc(s.t.Context(), tx, func(savepoint pgx.Tx) error {
				return outbox.Append(s.t.Context(), savepoint, es)
			}))
			if turn == 0 {
				_, err := tx.Exec(s.t.Context(), makeSubtransactions)
				s.check(err)
			}
		}
	}
	return events
}

const makeSubtransactions = `
DO $$ BEGIN
    FOR i IN 1..70 LOOP
        BEGIN
            INSERT INTO notes VALUES (i);
        EXCEPTION WHEN division_by_zero THEN -- a block with EXCEPTION is a subtransaction
        END;
    END LOOP;
END $$`

// prepare returns the statement that commits what it has prepared.
func (s *stress) prepare(tx pgx.Tx) (commit string) {
	s.t.Helper()
	_, err := tx.Exec(s.t.Context(), `PREPARE TRANSACTION '`+s.db.Name+`'`) // the name is the whole server's
	s.check(err)
	s.t.Cleanup(func() { // if the test failed: a database with a prepared transaction cannot be dropped
		_, _ = s.pool.Exec(context.Background(), `ROLLBACK PREPARED '`+s.db.Name+`'`)
	})
	return `COMMIT PREPARED '` + s.db.Name + `'`
}

// writeWhileReading lets all writers loose, and reads until they are done.
func (s *stress) writeWhileReading() {
	s.t.Helper()
	var all sync.WaitGroup
	var done atomic.Bool
	seed := uint64(len(s.log.read))
	for w := range writers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), seed))
			for range rounds {
				if err := s.transact(s.t.Context(), rng); err != nil {
					s.t.Errorf("writer: %v", err)
					return
				}
			}
		})
	}
	go func() { all.Wait(); done.Store(true) }()
	defer all.Wait()
	for !done.Load() {
		s.read()
	}
}

func (s *stress) read() (more bool) {
	s.t.Helper()
	batch, next, err := s.cursor.read(s.t.Context(), s.relay, s.at)
	s.check(err)
	s.log.receive(batch)
	if len(s.log.read) > 1_000_000 {
		s.t.Fatal("it reads without end")
	}
	more = len(batch) > 0 || next != s.at
	s.at = next
	return more
}

// readAll reads until there is nothing more.
func (s *stress) readAll() {
	s.t.Helper()
	for s.read() {
	}
	s.log.expectAll()
}

// hideAboveXmax brings about what chance rarely does: an event is read while one with a lower id belongs to a transaction that
// runs and is not in xip, because its xid is above all that have completed. Any transaction of the whole server that began
// later and has completed undoes it, so it is tried until it is seen to have happened.
func (s *stress) hideAboveXmax() {
	s.t.Helper()
	ctx := s.t.Context()
	one, other := s.connect(s.db.URL), s.connect(s.db.URL)
	for range 2000 {
		first, err := one.Begin(ctx)
		s.check(err)
		second, err := other.Begin(ctx)
		s.check(err)
		_, err = first.Exec(ctx, `SELECT pg_current_xact_id()`)
		s.check(err)
		hidden, err := change(ctx, second, 2)
		s.check(err)
		read, err := change(ctx, first, 1)
		s.check(err)
		s.check(first.Commit(ctx))
		s.log.commit(read)
		s.readAll()
		var happened bool
		s.check(second.QueryRow(ctx, `SELECT pg_current_xact_id() >= pg_snapshot_xmax(pg_current_snapshot())`).Scan(&happened))
		s.check(second.Commit(ctx))
		s.log.commit(hidden)
		s.readAll()
		if happened {
			return
		}
	}
	s.t.Fatal("a younger transaction of the server was faster each time")
}

var errChangedItsMind = errors.New("changed its mind")

// transact changes one to three hot aggregates, at times in a savepoint that it may roll back to, and commits three times of
// four. It lingers, and at times draws its xid long before its first id, so that the orders of xids, ids and commits differ.
func (s *stress) transact(ctx context.Context, rng *rand.Rand) error {
	var written []uuid.UUID
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if rng.IntN(3) == 0 {
			if _, err := tx.Exec(ctx, `SELECT pg_current_xact_id(), pg_sleep($1)`, rng.Float64()/200); err != nil {
				return err
			}
		}
		first := 1 + rng.IntN(hot)
		for id := first; id <= min(hot, first+rng.IntN(3)); id++ { // ascending: no deadlock
			e, err := change(ctx, tx, id)
			if err != nil {
				return err
			}
			written = append(written, e)
			if rng.IntN(3) == 0 {
				keep := rng.IntN(2) == 0
				err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
					e, err := change(ctx, savepoint, id)
					if err != nil {
						return err
					}
					if !keep {
						return errChangedItsMind
					}
					written = append(written, e)
					return nil
				})
				if err != nil && !errors.Is(err, errChangedItsMind) {
					return err
				}
			}
			if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rng.Float64()/500); err != nil {
				return err
			}
		}
		if rng.IntN(4) == 0 {
			return errChangedItsMind
		}
		return nil
	})
	if errors.Is(err, errChangedItsMind) {
		return nil
	}
	if err == nil {
		s.log.commit(written...)
	}
	return err
}

// change raises the aggregate's version, which locks its row, and then appends the event that tells of it.
func change(ctx context.Context, tx pgx.Tx, aggregate int) (uuid.UUID, error) {
	var version int64
	if err := tx.QueryRow(ctx, `UPDATE aggregates SET version = version + 1 WHERE id = $1 RETURNING version`, aggregate).Scan(&version); err != nil {
		return uuid.Nil, err
	}
	e := newEvent(fmt.Sprint("hot-", aggregate), version)
	return e.ID, outbox.Append(ctx, tx, []outbox.Event{e})
}

func newEvent(aggregate string, version int64) outbox.Event {
	return outbox.Event{
		ID: uuid.Must(uuid.NewV7()), AggregateType: "things", AggregateID: aggregate, AggregateVersion: version,
		Type: "thing.changed", Payload: []byte(`{}`),
	}
}

func TestStressReadsEachEventOnceInOrder(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 7, 1000} {
		t.Run(fmt.Sprintf("limit %d", limit), func(t *testing.T) {
			t.Parallel()
			s := newStress(t, ours(limit))
			s.run(limit)
			if found := s.log.faults(); len(found) > 0 {
				t.Errorf("faults among %d events: %v", len(s.log.committed), found)
			}
		})
	}
}

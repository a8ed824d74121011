package relay

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/testenv"
)

// The cursors that others use, as they would be written, to show that the stress finds their faults. They read the
// columns that a readLog needs, behind one that is for the next position.

const readByID = `
SELECT '', id, event_id, aggregate_id, aggregate_version
FROM outbox_events WHERE id > $1 ORDER BY id LIMIT $2`

// afterID takes ids for the order of commits: it loses what commits behind a higher id.
func afterID(limit int) cursor {
	return cursor{Position{}, func(ctx context.Context, db *pgxpool.Pool, p Position) ([]Message, Position, error) {
		batch, _, err := readWeakly(ctx, db, readByID, p.Last, limit)
		if err != nil || len(batch) == 0 {
			return nil, p, err
		}
		return batch, Position{Last: batch[len(batch)-1].ID}, nil
	}}
}

const readBelowXmin = `
SELECT xid::text AS mark, id, event_id, aggregate_id, aggregate_version
FROM outbox_events
WHERE (xid, id) > ($1::text::xid8, $2) AND xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY xid, id LIMIT $3`

// belowXmin loses nothing, because it reads only what is older than every running transaction of the server. So it waits for
// each of them, and takes xids for the order of commits. Its position is a pair of xid and id.
func belowXmin(limit int) cursor {
	return cursor{Position{Seen: "0"}, func(ctx context.Context, db *pgxpool.Pool, p Position) ([]Message, Position, error) {
		batch, xid, err := readWeakly(ctx, db, readBelowXmin, p.Seen, p.Last, limit)
		if err != nil || len(batch) == 0 {
			return nil, p, err
		}
		return batch, Position{Last: batch[len(batch)-1].ID, Seen: xid}, nil
	}}
}

const readXip = `
SELECT pg_current_snapshot()::text, u.* FROM (
  (SELECT id, event_id, aggregate_id, aggregate_version FROM outbox_events WHERE id > $1 ORDER BY id LIMIT $3)
  UNION ALL
  (SELECT id, event_id, aggregate_id, aggregate_version FROM outbox_events
   WHERE id <= $1 AND xid = ANY(ARRAY(SELECT pg_snapshot_xip($2::text::pg_snapshot))))) u
ORDER BY u.id`

// xipOnly takes the xip of a snapshot for all that was running. It loses transactions with a higher xid than the latest that
// had completed.
func xipOnly(limit int) cursor {
	return cursor{Position{Seen: "3:3:"}, func(ctx context.Context, db *pgxpool.Pool, p Position) ([]Message, Position, error) {
		batch, snapshot, err := readWeakly(ctx, db, readXip, p.Last, p.Seen, limit)
		if err != nil || len(batch) == 0 {
			return nil, p, err
		}
		return batch, Position{Last: max(p.Last, batch[len(batch)-1].ID), Seen: snapshot}, nil
	}}
}

// readWeakly returns the messages and the first column of the last row.
func readWeakly(ctx context.Context, db *pgxpool.Pool, query string, args ...any) (batch []Message, mark string, err error) {
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return nil, "", err
	}
	batch, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Message, err error) {
		return m, row.Scan(&mark, &m.ID, &m.EventID, &m.AggregateID, &m.AggregateVersion)
	})
	return batch, mark, err
}

func TestStressFindsIDsAloneLoseEvents(t *testing.T) {
	t.Parallel()
	s := newStress(t, afterID(7))
	s.run(7)
	s.mustFind(lost)
}

func TestStressFindsXipAloneLosesEvents(t *testing.T) {
	t.Parallel()
	s := newStress(t, xipOnly(1000))
	s.run(1000)
	s.mustFind(lost)
}

func TestStressFindsReadingBelowXminWaits(t *testing.T) {
	t.Parallel()
	s := newStress(t, belowXmin(1000))
	s.run(1000)
	testenv.Eventually(t, 5*time.Minute, func() error { // it waits for the transactions of other tests as well
		for s.read() {
		}
		if n := s.log.faults()[lost]; n > 0 {
			return fmt.Errorf("%d events are not read", n)
		}
		return nil
	})
	s.mustFind(late, outOfOrder)
}

func (s *stress) mustFind(faults ...fault) {
	s.t.Helper()
	found := s.log.faults()
	s.t.Logf("faults among %d events: %v", len(s.log.committed), found)
	for _, fault := range faults {
		if found[fault] == 0 {
			s.t.Errorf("the stress shows no event %s", fault)
		}
	}
}

// No clock: what is read while the transaction is open has not waited for it.
func TestOpenTransactionDelaysOwnEventsOnly(t *testing.T) {
	t.Parallel()
	held := map[string]func(s *stress) (end func()){
		"in this database": func(s *stress) func() {
			return s.hold(s.db.URL)
		},
		"in another database of the server": func(s *stress) func() {
			return s.hold(testenv.EmptyDatabase(s.t).URL)
		},
		"prepared, with no connection at all": func(s *stress) func() {
			tx := s.begin(s.db.URL)
			s.write(tx)
			commit := s.prepare(tx)
			return func() { _, err := s.pool.Exec(s.t.Context(), commit); s.check(err) }
		},
	}
	for name, hold := range held {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStress(t, ours(10))
			end := hold(s)
			for n := range 3 {
				tx := s.begin(s.db.URL)
				e, err := change(t.Context(), tx, 1)
				s.check(err)
				s.check(tx.Commit(t.Context()))
				s.log.commit(e)
				s.readAll()
				if got := len(s.log.read); got != n+1 {
					t.Fatalf("%d events read beside the open transaction, want %d", got, n+1)
				}
			}

			s.cursor, s.at = belowXmin(10), belowXmin(10).start
			s.log.read = nil
			s.readAll()
			if got := len(s.log.read); got > 0 {
				t.Errorf("%d events read below xmin: there is no open transaction", got)
			}
			end()
			testenv.Eventually(t, 5*time.Minute, func() error {
				if s.readAll(); len(s.log.read) < 3 {
					return errors.New("not read after the transaction has ended")
				}
				return nil
			})
		})
	}
}

// hold keeps a transaction open that has written.
func (s *stress) hold(url string) (end func()) {
	tx := s.begin(url)
	s.write(tx)
	return func() { s.check(tx.Rollback(s.t.Context())) }
}

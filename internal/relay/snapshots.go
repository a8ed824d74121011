package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Snapshots watches for old snapshots: Postgres can vacuum nothing that is newer than one, even if
// its transaction has written nothing. An account that changes often then has a longer chain of dead
// rows with every payment, and each payment walks through it. The zero value is ready to use.
type Snapshots struct {
	since map[held]time.Time // when each was first seen
}

// Snapshot is the oldest snapshot of its kind.
type Snapshot struct {
	Kind         string        // session, slot or standby
	Name         string        // application and user of a session, the slot's, the standby's
	PID          int32         // 0: a slot that no process uses
	Transactions int64         // begun since
	Seen         time.Duration // for how long this Snapshots has seen it
}

// held is one snapshot of one holder.
type held struct {
	kind, name string
	pid        int32
	xmin       string
}

// Every role sees the snapshots of other roles' sessions, and the names, but not since when; of
// slots and standbys too. So this needs no pg_read_all_stats. The last column says that another
// transaction is to blame, which is writing and older: see Writers. Autovacuum, whose snapshots hold
// up nobody, has no user.
const openSnapshots = `
SELECT 'session', format('%s (%s)', application_name, usename), pid, backend_xmin::text, age(backend_xmin)::bigint,
  EXISTS (SELECT FROM pg_stat_activity w WHERE w.backend_xid = a.backend_xmin AND w.pid <> a.pid)
  OR EXISTS (SELECT FROM pg_prepared_xacts WHERE transaction = a.backend_xmin)
FROM pg_stat_activity a
WHERE backend_xmin IS NOT NULL AND datname = current_database() AND usesysid IS NOT NULL
  AND pid <> pg_backend_pid() AND pid NOT IN (SELECT pid FROM pg_stat_replication)
UNION ALL
SELECT 'slot', slot_name, coalesce(active_pid, 0), format('%s:%s', xmin, catalog_xmin),
  greatest(age(xmin), age(catalog_xmin))::bigint, false
FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL
UNION ALL
SELECT 'standby', coalesce(application_name, ''), pid, backend_xmin::text, age(backend_xmin)::bigint, false
FROM pg_stat_replication WHERE backend_xmin IS NOT NULL`

// Oldest returns the oldest snapshot of each kind that there is. It needs no rights. Call it
// regularly, one call at a time.
func (s *Snapshots) Oldest(ctx context.Context, db *pgxpool.Pool) (map[string]Snapshot, error) {
	now, since, oldest := time.Now(), map[held]time.Time{}, map[string]Snapshot{}
	var h held
	var transactions int64
	var behindWriter bool

	rows, _ := db.Query(ctx, openSnapshots) // ForEachRow returns its error
	columns := []any{&h.kind, &h.name, &h.pid, &h.xmin, &transactions, &behindWriter}
	_, err := pgx.ForEachRow(rows, columns, func() error {
		first, known := s.since[h]
		if !known {
			first = now
		}
		since[h] = first

		// Of snapshots that are equally old, the one that is held for longest.
		found, than := Snapshot{h.kind, h.name, h.pid, transactions, now.Sub(first)}, oldest[h.kind]
		older := transactions > than.Transactions || transactions == than.Transactions && found.Seen > than.Seen
		if !behindWriter && (than.Kind == "" || older) {
			oldest[h.kind] = found
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for old snapshots: %w", err)
	}

	s.since = since
	return oldest, nil
}

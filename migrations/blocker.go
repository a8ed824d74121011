package migrations

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

const lookEvery = lockTimeout / 5

// The longest transaction first: the others may be waiting for it as well. Without a relation it is the wait for
// another transaction to end. Pid 0 is a prepared transaction.
const blocker = `
SELECT coalesce(l.relation::regclass::text, ''), b.pid, coalesce(a.application_name, '')
FROM pg_locks l
CROSS JOIN unnest(pg_blocking_pids(l.pid)) AS b (pid)
LEFT JOIN pg_stat_activity a ON a.pid = b.pid
WHERE l.pid = $1 AND NOT l.granted
ORDER BY a.xact_start LIMIT 1`

// watch looks, until stop is closed, for what the session waits for, and returns what it saw last. Afterwards it would
// be too late: Postgres forgets who was in the way.
func (u *up) watch(ctx context.Context, session *atomic.Uint32, stop <-chan struct{}) string {
	seen := "needs a lock that another session holds"
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()

	for {
		select {
		case <-stop:
			return seen
		case <-tick.C:
		}

		var table, application string
		var pid int32
		err := u.conn.QueryRow(ctx, blocker, session.Load()).Scan(&table, &pid, &application)
		switch {
		case err != nil: // mostly: there is no such wait
		case table == "":
			seen = fmt.Sprintf("waits for a transaction of pid %d (%s)", pid, application)
		default:
			seen = fmt.Sprintf("needs a lock on %s, which pid %d (%s) holds", table, pid, application)
		}
	}
}

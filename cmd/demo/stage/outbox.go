package stage

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/cmd/demo/page"
)

// outboxView remembers how many events were sent: counting all of them each time would cost more than
// the rest of the page.
type outboxView struct {
	sent    int64 // events up to upTo
	upTo    int64
	counted time.Time
}

// recount is how often all events are counted: late commits below the cursor are found then.
const recount = 10 * time.Second

// The first holder is the empty text; a lease that was given back is -infinity.
const readOutbox = `
SELECT c.last_id, c.seen::text, coalesce(nullif(split_part(c.holder, '/', 2), '')::int, 0), c.fencing_token,
  coalesce(extract(epoch FROM nullif(c.lease_until, '-infinity') - clock_timestamp()), 0)::float8,
  (SELECT count(*) FROM outbox_events WHERE id > c.last_id),
  coalesce(extract(epoch FROM clock_timestamp() - (SELECT created_at FROM outbox_events WHERE id > c.last_id ORDER BY id LIMIT 1)), 0)::float8,
  (SELECT count(*) FROM outbox_events WHERE id <= c.last_id AND id > $1)
FROM outbox_cursors c WHERE c.relay = 'main'`

// A payment takes milliseconds; what is open for longer makes its events late.
const readStragglers = `
SELECT backend_xid::text, extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND datname = current_database() AND xact_start < clock_timestamp() - interval '0.5 s'
ORDER BY 2 DESC`

// read asks the database alone: a relay may be frozen, and believe anything.
func (o *outboxView) read(ctx context.Context, s *Stage) (page.Outbox, *page.Lease) {
	shown := page.Outbox{Stragglers: []page.Straggler{}}
	if time.Since(o.counted) > recount {
		o.sent, o.upTo, o.counted = 0, 0, time.Now()
	}

	var last, more, token int64
	var seen string
	var pid int
	var left float64
	err := s.db.QueryRow(ctx, readOutbox, o.upTo).Scan(
		&last, &seen, &pid, &token, &left, &shown.Waiting, &shown.OldestSeconds, &more)
	if err != nil {
		return shown, nil // no relay has led yet, or the demo ends
	}
	o.sent, o.upTo = o.sent+more, last
	shown.Sent, shown.Cursor = o.sent, "id "+strconv.FormatInt(last, 10)+", snapshot "+seen

	rows, _ := s.db.Query(ctx, readStragglers) // CollectRows returns its error
	if all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[page.Straggler]); err == nil && all != nil {
		shown.Stragglers = all
	}

	if left <= 0 {
		return shown, nil
	}
	lease := &page.Lease{Holder: "unknown", Token: token, LeftSeconds: left}
	for _, p := range s.Service.All() {
		if p.Pid() == pid {
			lease.Holder = p.Name
		}
	}
	return shown, lease
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/program"
	"github.com/oncepay/oncepay/internal/relay"
)

// outboxView is the outbox as an operator sees it.
type outboxView struct {
	Backlog    backlog     `json:"backlog"` // of the relay furthest behind; without any, all events
	Refused    int64       `json:"refused"` // by the broker and undecided, over all relays
	Parked     int64       `json:"parked_aggregates"`
	Relays     []relayView `json:"relays"`
	Writer     *writer     `json:"oldest_writer"`   // nil: no transaction is writing
	Writers    bool        `json:"writers_visible"` // whether we may see other roles' transactions
	Partitions partitions  `json:"partitions"`
}

type backlog struct {
	Events           int64   `json:"events"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
}

// relayView is a cursor and what its relay has left to send.
type relayView struct {
	relay.Cursor
	Backlog backlog `json:"backlog"`
}

type writer struct {
	PID         int32   `json:"pid"` // 0: a prepared transaction, in no session
	Application string  `json:"application"`
	State       string  `json:"state"`
	AgeSeconds  float64 `json:"age_seconds"`
}

// partitions are those of the outbox, one for each UTC day.
type partitions struct {
	Kept      int    `json:"kept"`
	Oldest    string `json:"oldest"` // day; empty without any
	DaysAhead int    `json:"days_ahead"`
}

func (o operator) outbox() *cobra.Command {
	return &cobra.Command{
		Use:   "outbox",
		Short: "Show what is still to be sent, where each relay stands, and what holds it up",
		Long: `Shows what is still to be sent, where each relay stands, and what may hold it up. It changes
nothing.

  backlog     ids above the cursor; an upper bound, since ids that were rolled back count as well
  stragglers  events below the cursor that committed late and are still to be sent
  writer      the oldest transaction that has written: its own events wait for it, no others do
  refused     events that Kafka will not take and nobody has decided on: relay dead-letters -h
  parked      aggregates that wait behind them; all others flow
  partitions  one for each UTC day that is kept, and for the days ahead (7 is right)`,
		Example: "  oncepay outbox\n  watch oncepay outbox",
		GroupID: asOperator,
		RunE: func(c *cobra.Command, _ []string) error {
			v, err := o.readOutbox(c.Context())
			if err != nil {
				return err
			}

			return program.Show(c, v, v.print)
		},
	}
}

func (o operator) readOutbox(ctx context.Context) (v outboxView, err error) {
	db, err := o.open(ctx)
	if err != nil {
		return v, err
	}
	defer db.Close()

	// One snapshot, so that cursors, writer and partitions belong together.
	if err := pgx.BeginTxFunc(ctx, db, looks, func(tx pgx.Tx) error {
		return v.read(ctx, tx)
	}); err != nil {
		return v, err
	}

	return v, v.measure(ctx, db)
}

// Without the role pg_read_all_stats other roles' transactions are silently invisible.
const maySeeWriters = `
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')`

const readWriter = `
SELECT pid, application_name, state, extract(epoch FROM clock_timestamp() - began)::float8 FROM (
  SELECT pid, application_name, coalesce(state, '') AS state, xact_start AS began FROM pg_stat_activity
  WHERE backend_xid IS NOT NULL AND datname = current_database()
  UNION ALL
  SELECT 0, gid, 'prepared', prepared FROM pg_prepared_xacts WHERE database = current_database()) w
ORDER BY began LIMIT 1`

const readPartitions = `
SELECT count(*), coalesce(min(day)::text, ''),
       count(*) FILTER (WHERE day > (now() AT TIME ZONE 'utc')::date)
FROM (SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
      WHERE i.inhparent = 'outbox_events'::regclass AND c.relname ~ '_[0-9]{8}$') d`

func (v *outboxView) read(ctx context.Context, tx pgx.Tx) (err error) {
	cursors, err := relay.Cursors(ctx, tx)
	if err != nil {
		return err
	}

	v.Relays = []relayView{} // not null in JSON
	for _, c := range cursors {
		v.Relays = append(v.Relays, relayView{Cursor: c})
	}

	if err := tx.QueryRow(ctx, maySeeWriters).Scan(&v.Writers); err != nil {
		return fmt.Errorf("read privileges: %w", err)
	}

	rows, _ := tx.Query(ctx, readWriter) // CollectExactlyOneRow returns its error
	v.Writer, err = pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[writer])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read transactions: %w", err)
	}

	// From the catalog, so that it is right when partitions can no longer be made.
	p := &v.Partitions
	if err := tx.QueryRow(ctx, readPartitions).Scan(&p.Kept, &p.Oldest, &p.DaysAhead); err != nil {
		return fmt.Errorf("read partitions: %w", err)
	}
	return nil
}

// measure determines the backlogs just as the relay's own metrics do.
func (v *outboxView) measure(ctx context.Context, pool *pgxpool.Pool) (err error) {
	if len(v.Relays) == 0 {
		v.Backlog, err = v.backlogOf(ctx, pool, "") // of a relay that has read nothing
		return err
	}

	// Report the relay that is furthest behind. All of them read the same outbox.
	for i := range v.Relays {
		r := &v.Relays[i]
		if r.Backlog, err = v.backlogOf(ctx, pool, r.Relay); err != nil {
			return err
		}
		if r.Backlog.Events >= v.Backlog.Events {
			v.Backlog = r.Backlog
		}
	}
	return nil
}

func (v *outboxView) backlogOf(
	ctx context.Context, pool *pgxpool.Pool, name string,
) (backlog, error) {
	b, err := relay.MeasureBacklog(ctx, pool, name)
	v.Refused += b.DeadLetters
	v.Parked += b.ParkedAggregates
	return backlog{Events: b.Events, OldestAgeSeconds: b.OldestAge.Seconds()}, err
}

func (v outboxView) print(w io.Writer) {
	if len(v.Relays) == 0 {
		fmt.Fprintln(w, "no relay has run here yet")
		program.Row(w, "backlog", v.Backlog.Events, v.Backlog.oldest())
	} else {
		program.Row(w, "RELAY", "BACKLOG", "OLDEST", "STRAGGLERS", "CURSOR",
			"MOVED", "LEADER", "LEASE", "FENCING")
	}
	for _, r := range v.Relays {
		leader := r.Holder
		if !r.Leads {
			leader = "NOBODY"
		}
		program.Row(w, r.Relay, r.Backlog.Events, r.Backlog.oldest(), r.Stragglers, r.LastID,
			r.MovedAt, leader, r.LeaseUntil, r.FencingToken)
	}

	fmt.Fprintln(w)
	v.printWriter(w)

	// Where a number asks for something, say what.
	refused, ahead := fmt.Sprint(v.Refused), fmt.Sprint(v.Partitions.DaysAhead)
	if v.Refused > 0 {
		refused += " (decide with relay dead-letters)"
	}
	if v.Partitions.DaysAhead < outbox.DaysAhead {
		ahead += fmt.Sprintf(" of %d: is a relay running?", outbox.DaysAhead)
	}

	program.Row(w, "refused", refused)
	program.Row(w, "parked", v.Parked)
	program.Row(w, "partitions", v.Partitions.Kept, "oldest "+v.Partitions.Oldest)
	program.Row(w, "days ahead", ahead)
}

func (v outboxView) printWriter(w io.Writer) {
	switch o := v.Writer; {
	case !v.Writers: // "none" would be a guess
		program.Row(w, "oldest writer", "not to be seen: this login lacks pg_read_all_stats")
	case o == nil:
		program.Row(w, "oldest writer", "none")
	case o.PID == 0:
		program.Row(w, "oldest writer", seconds(o.AgeSeconds), o.Application,
			"prepared, in no session")
	default:
		program.Row(w, "oldest writer", seconds(o.AgeSeconds), o.Application, o.State,
			fmt.Sprintf("pid %d", o.PID))
	}
}

func (b backlog) oldest() string {
	if b.OldestAgeSeconds == 0 {
		return "-"
	}
	return seconds(b.OldestAgeSeconds)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

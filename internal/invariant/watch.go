package invariant

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Watch counts again and again while the service is at work. In place of quiet it asks what has
// settled: an event that the relay's cursor has passed must be on its topic, a record that the
// consumer has committed must have had its effect. What is still on its way is not looked at. What is
// true in every snapshot of the tables is checked as Check does.
//
// Topics and the PSP's books are read once: a call reads what has come since the last one. The tables
// are read as a whole, so a call takes longer the more there is.
type Watch struct {
	check
	books    func(context.Context) ([]PSPEntry, error)
	admin    *kadm.Client
	analyzed int64 // records, when the server last looked at the temporary tables
}

// settledTables hold how far relay, consumer and the reading of the PSP's books have come.
const settledTables = `
CREATE TEMP TABLE settled (last_id bigint, seen pg_snapshot);
CREATE TEMP TABLE consumed (aggregate_type text NOT NULL, partition int NOT NULL, "offset" bigint NOT NULL);
CREATE TEMP TABLE books_read (at timestamptz NOT NULL)`

// OpenWatch connects. Of s it leaves History and PSP unused: books returns what the PSP has in its
// books and no earlier call has returned. The caller calls Close, also after an error of Check, which
// leaves the Watch unusable.
func OpenWatch(
	ctx context.Context, s Sources, books func(context.Context) ([]PSPEntry, error),
) (*Watch, error) {
	pooled, err := s.DB.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch invariants: connect: %w", err)
	}

	w := &Watch{check: check{Sources: s, conn: pooled.Hijack(), read: offsets{}}, books: books}
	w.Progress = func(string) {}

	options := append([]kgo.Opt{kgo.SeedBrokers(s.Brokers...)}, s.KafkaOptions...)
	if w.admin, err = kadm.NewOptClient(options...); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch invariants: make Kafka client: %w", err)
	}
	for _, sql := range []string{settings, temporaryTables, settledTables} {
		if _, err := w.conn.Exec(ctx, sql); err != nil {
			w.Close()
			return nil, fmt.Errorf("watch invariants: %w", err)
		}
	}
	return w, nil
}

// Close disconnects.
func (w *Watch) Close() {
	if w.admin != nil {
		w.admin.Close()
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx) // the server may be gone
}

// Backend returns the process id of the server's session, to see what the checks cost.
func (w *Watch) Backend() uint32 { return w.conn.PgConn().PID() }

// Check counts what is wrong among what has settled, for the lines of these names or for all. While the
// PSP cannot be asked, its books are those of the last call that could.
func (w *Watch) Check(ctx context.Context, names ...string) (Report, error) {
	if err := w.gather(ctx); err != nil {
		return Report{}, fmt.Errorf("watch invariants: %w", err)
	}

	w.report = Report{}
	one := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, w.conn, one, func(tx pgx.Tx) error {
		for _, q := range watched() {
			if len(names) > 0 && !slices.Contains(names, q.name) {
				continue
			}
			line, err := q.run(ctx, tx)
			if err != nil {
				return fmt.Errorf("count %s: %w", q.name, err)
			}
			w.report.Lines = append(w.report.Lines, line)
		}
		return nil
	})
	if err != nil {
		return Report{}, fmt.Errorf("watch invariants: %w", err)
	}
	return w.report, nil
}

// A relay moves its cursor when the broker has acknowledged. What its snapshot did not see comes later.
const settle = `
DELETE FROM settled;
DELETE FROM consumed;
DELETE FROM bounds;
INSERT INTO settled SELECT last_id, seen FROM outbox_cursors`

// gather reads how far everything has come before it reads what is compared with that.
func (w *Watch) gather(ctx context.Context) error {
	if _, err := w.conn.Exec(ctx, settle); err != nil {
		return fmt.Errorf("read the cursor: %w", err)
	}
	if err := w.gatherConsumed(ctx); err != nil {
		return err
	}
	if err := w.gatherBooks(ctx); err != nil {
		return err
	}

	since, err := w.gatherTopics(ctx)
	if err != nil {
		return err
	}
	if _, err := w.conn.Exec(ctx, insertBounds, w.Consumer, since); err != nil {
		return fmt.Errorf("find how far back the tables go: %w", err)
	}
	if _, err := w.conn.Exec(ctx, `UPDATE bounds SET keys_since = now() - keep`); err != nil {
		return fmt.Errorf("find how far back the tables go: %w", err)
	}

	// Nobody but us analyzes temporary tables. Their size matters, not each row.
	records := int64(0)
	for _, end := range w.read {
		records += end
	}
	if records <= 2*w.analyzed {
		return nil
	}
	w.analyzed = records
	_, err = w.conn.Exec(ctx, `ANALYZE topic_records; ANALYZE psp_books; ANALYZE consumed; ANALYZE bounds`)
	return err
}

// gatherConsumed reads the offsets that the consumer has committed, after its effects.
func (w *Watch) gatherConsumed(ctx context.Context) error {
	committed, err := w.admin.FetchOffsets(ctx, w.Consumer)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return fmt.Errorf("read the consumer's offsets: %w", err)
	}

	var rows [][]any
	committed.Each(func(o kadm.OffsetResponse) {
		rows = append(rows, []any{strings.TrimPrefix(o.Topic, w.TopicPrefix), o.Partition, o.At})
	})
	columns := []string{"aggregate_type", "partition", "offset"}
	if _, err := w.conn.CopyFrom(ctx, pgx.Identifier{"consumed"}, columns, pgx.CopyFromRows(rows)); err != nil {
		return fmt.Errorf("copy the consumer's offsets: %w", err)
	}
	return nil
}

// gatherBooks notes the time before it asks the PSP: what had ended by then is in the answer.
func (w *Watch) gatherBooks(ctx context.Context) error {
	var at time.Time
	if err := w.conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}

	entries, err := w.books(ctx)
	if err != nil {
		return nil // the PSP is down, which is no finding
	}
	if err := copyBooks(ctx, w.conn, entries); err != nil {
		return err
	}
	_, err = w.conn.Exec(ctx, `DELETE FROM books_read`)
	if err == nil {
		_, err = w.conn.Exec(ctx, `INSERT INTO books_read VALUES ($1)`, at)
	}
	return err
}

// watched are the lines of a Watch: those that hold in every snapshot, and for the others what has
// settled of them.
func watched() (all []query) {
	settled := map[string]string{
		EventsLost: eventsLostSettled, EffectsLost: effectsLostSettled,
		StatementsWrong: statementsWrongSettled, ChargedUnbooked: chargedUnbookedSettled,
		BookedUncharged: bookedUnchargedSettled,
	}
	for _, q := range queries {
		if sql, found := settled[q.name]; found {
			q.wrong = sql
		}

		switch q.name {
		// Settled only when nothing is in flight, or counted by the others as well.
		case EventsPhantom, EventsChanged, EventsRepeated, EffectsPhantom, PaymentsAstray:
			continue
		}
		if q.needs != histories {
			all = append(all, q)
		}
	}
	return all
}

const eventsLostSettled = `
SELECT format('event %s', o.event_id)
FROM outbox_events o JOIN settled s ON o.id <= s.last_id AND pg_visible_in_snapshot(o.xid, s.seen)
WHERE o.created_at >= (SELECT topics_since + interval '1 minute' FROM bounds)
  AND NOT EXISTS (SELECT FROM topic_records r WHERE r.event_id = o.event_id)
  AND NOT EXISTS (SELECT FROM outbox_dead_letters l WHERE l.event_id = o.event_id)`

const effectsLostSettled = `
SELECT DISTINCT format('event %s', r.event_id)
FROM topic_records r JOIN consumed c ON c.aggregate_type = r.aggregate_type AND c.partition = r.partition AND r."offset" < c."offset"
WHERE r.event_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM inbox_events i WHERE i.consumer = (SELECT consumer FROM bounds) AND i.event_id = r.event_id)
  AND NOT EXISTS (SELECT FROM inbox_dead_letters l WHERE l.consumer = (SELECT consumer FROM bounds) AND l.event_id = r.event_id)`

// What the events say that the consumer has in its inbox. The ledger may be ahead of them.
const statementsWrongSettled = `
WITH effects AS MATERIALIZED (
  SELECT o.aggregate_id, o.event_type, o.payload
  FROM inbox_events i JOIN outbox_events o ON o.event_id = i.event_id
  WHERE i.consumer = (SELECT consumer FROM bounds) AND o.event_type IN ('payment.completed', 'refund.completed')
), moved AS MATERIALIZED (
  SELECT p.source_account, p.destination_account, p.amount_minor - p.released_minor AS amount_minor
  FROM effects e JOIN payments p ON p.id::text = e.aggregate_id
  WHERE e.event_type = 'payment.completed'
  UNION ALL
  SELECT r.source_account, r.destination_account, r.amount_minor
  FROM effects e JOIN refunds r ON r.payment_id::text = e.aggregate_id AND position(convert_to(r.id::text, 'UTF8') IN e.payload) > 0
  WHERE e.event_type = 'refund.completed'
)
SELECT format('account %s', account_id)
FROM (
  SELECT account_id, sum(payment_count) AS payment_count, sum(debits_minor) AS debits_minor, sum(credits_minor) AS credits_minor
  FROM statements GROUP BY 1
) s
FULL JOIN (
  SELECT account_id, count(*) AS payment_count, sum(debit) AS debits_minor, sum(credit) AS credits_minor
  FROM (SELECT source_account AS account_id, amount_minor AS debit, 0 AS credit FROM moved
        UNION ALL SELECT destination_account, 0, amount_minor FROM moved) sides
  GROUP BY 1
) e USING (account_id)
WHERE (s.payment_count, s.debits_minor, s.credits_minor) IS DISTINCT FROM (e.payment_count, e.debits_minor, e.credits_minor)`

// A charge whose result we do not know yet is found.
const chargedUnbookedSettled = `
SELECT format('%s %s', b.kind, b.reference)
FROM psp_books b
LEFT JOIN psp_operations o ON o.id::text = b.operation_id AND o.kind = b.kind
WHERE NOT b.declined AND (o.id IS NULL OR o.state IN ('declined', 'failed'))`

const bookedUnchargedSettled = `
SELECT format('operation %s', o.id)
FROM psp_operations o JOIN books_read b ON o.ended_at < b.at
WHERE o.state = 'succeeded'
  AND NOT EXISTS (SELECT FROM psp_books b WHERE b.operation_id = o.id::text AND b.kind = o.kind AND NOT b.declined)`

package invariant

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Sources names what is compared. Everything must be quiet: clients gone, backlog and lag at zero.
// Anything in flight counts as lost.
type Sources struct {
	DB *pgxpool.Pool // as the schema's owner; one connection is taken out and closed at the end

	// Brokers may be empty. The report then leaves out the lines that need topics or a consumer's
	// work on them, and says so.
	Brokers []string

	KafkaOptions []kgo.Opt // for every Kafka client of the check: TLS, SASL
	TopicPrefix  string    // before payments, accounts and the outbox's other types
	Consumer     string    // name in inbox_events

	// History lists files of Exchanges. Without any, the report leaves out the lines that need
	// them, and says so.
	History []string

	// PSP is what the PSP has in its books, every charge and refund. With nil the report leaves out the
	// lines that need them, and says so; empty books are not nil.
	PSP []PSPEntry

	// MostRepeated is how many records may be repeats of others; zero allows none. A killed relay
	// sends again what it had in hand: two batches for each kill.
	MostRepeated int

	// Progress is called about once a second with the current step. Nil is fine.
	Progress func(doing string)
}

// settings apply to the one connection. It may come from a program's pool, whose limits suit
// statements that use an index; here every statement reads whole tables. Settings that a server
// does not know are skipped.
const settings = `
SELECT set_config(name, value, false)
FROM (VALUES
  ('statement_timeout', '0'), ('lock_timeout', '0'), ('transaction_timeout', '0'), ('idle_in_transaction_session_timeout', '0'),
  ('enable_seqscan', 'on'), ('enable_bitmapscan', 'on'), ('enable_hashjoin', 'on'), ('enable_mergejoin', 'on'), ('enable_hashagg', 'on'), ('enable_sort', 'on'),
  ('plan_cache_mode', 'auto'),
  ('jit', 'off'),
  ('max_parallel_workers_per_gather', '0'), -- their shared hash tables do not fit into the 64 MB that a container has by default
  ('work_mem', '256MB'), ('hash_mem_multiplier', '2'), -- a million rows in a hash table, without a temporary file
  ('row_security', 'off') -- an error for who may not see every row, where it would count those it sees
) wanted(name, value) JOIN pg_settings USING (name)`

// temporaryTables hold what is compared with the schema's tables. They go with the connection.
const temporaryTables = `
CREATE TEMP TABLE topic_records (
  aggregate_type text NOT NULL, partition int NOT NULL, "offset" bigint NOT NULL,
  event_id uuid,                -- NULL: it has none
  aggregate_id text NOT NULL,   -- the record's key
  event_type text, aggregate_version bigint, created_at timestamptz, tenant_id text, digest bytea NOT NULL,
  malformed text                -- what a consumer would stumble over
);
CREATE TEMP TABLE exchanges (
  client_id uuid NOT NULL, key text COLLATE "C" NOT NULL, request bytea NOT NULL, command text NOT NULL, payment_id uuid,
  amount_minor bigint NOT NULL, currency text NOT NULL, source_account uuid NOT NULL, destination_account uuid NOT NULL,
  status int NOT NULL, code text NOT NULL, answer bytea, replayed boolean NOT NULL
);
CREATE TEMP TABLE psp_books (
  kind text NOT NULL, reference text NOT NULL, charge_reference text NOT NULL, operation_id text NOT NULL,
  amount_minor bigint NOT NULL, currency text NOT NULL, declined boolean NOT NULL
);
CREATE TEMP TABLE bounds (consumer text COLLATE "C", keep interval, keys_since timestamptz, outbox_since timestamptz, topics_since timestamptz)`

// insertBounds records how far back each place remembers. keep falls back to 24 hours, the least
// that can be promised.
const insertBounds = `
INSERT INTO bounds (consumer, topics_since, keep, outbox_since)
SELECT $1, coalesce($2, '-infinity'::timestamptz), coalesce((SELECT keep FROM idempotency_retention), '24 hours'), coalesce(
  (SELECT min(to_date(right(c.relname, 8), 'YYYYMMDD')) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
   WHERE i.inhparent = 'outbox_events'::regclass AND c.relname ~ '^outbox_events_[0-9]{8}$')::timestamp AT TIME ZONE 'UTC', '-infinity')`

const finishBounds = `UPDATE bounds SET keys_since = now() - keep; ANALYZE topic_records; ANALYZE exchanges; ANALYZE psp_books; ANALYZE bounds`

const aggregateTypes = `SELECT aggregate_type FROM outbox_events UNION VALUES ('payments'), ('accounts')`

// Check counts what is wrong and reports it. An error means that it could not count.
func Check(ctx context.Context, s Sources) (Report, error) {
	pooled, err := s.DB.Acquire(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("check invariants: connect: %w", err)
	}

	conn := pooled.Hijack() // its settings and tables must not return to the pool
	defer conn.Close(context.WithoutCancel(ctx))

	c := check{Sources: s, conn: conn, read: offsets{}}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}

	if err := c.gather(ctx); err != nil {
		return Report{}, fmt.Errorf("check invariants: %w", err)
	}

	if err := c.count(ctx); err != nil {
		return Report{}, fmt.Errorf("check invariants: %w", err)
	}

	return c.report, nil
}

type check struct {
	Sources
	conn   *pgx.Conn
	read   offsets
	report Report
}

// gather copies histories and topics into the database, next to the tables.
func (c *check) gather(ctx context.Context) error {
	if _, err := c.conn.Exec(ctx, settings); err != nil {
		return fmt.Errorf("set up the connection: %w", err)
	}

	if _, err := c.conn.Exec(ctx, temporaryTables); err != nil {
		return fmt.Errorf("make temporary tables: %w", err)
	}

	for _, file := range c.History {
		c.Progress("read history " + file)
		if err := copyHistory(ctx, c.conn, file); err != nil {
			return err
		}
	}

	if err := copyBooks(ctx, c.conn, c.PSP); err != nil {
		return err
	}

	// Read the topics before the tables' snapshot: an event on a topic is then always in the
	// outbox.
	since, err := c.gatherTopics(ctx)
	if err != nil {
		return err
	}

	c.Progress("analyze")
	if _, err := c.conn.Exec(ctx, insertBounds, c.Consumer, since); err != nil {
		return fmt.Errorf("find how far back the tables go: %w", err)
	}

	if _, err := c.conn.Exec(ctx, finishBounds); err != nil {
		return fmt.Errorf("analyze: %w", err)
	}
	return nil
}

func (c *check) gatherTopics(ctx context.Context) (since *time.Time, err error) {
	if len(c.Brokers) == 0 {
		return nil, nil
	}

	c.Progress("find topics")
	rows, err := c.conn.Query(ctx, aggregateTypes)
	if err != nil {
		return nil, fmt.Errorf("find topics: %w", err)
	}

	types, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find topics: %w", err)
	}

	return copyTopics(ctx, c.conn, c.Sources, types, c.read, c.Progress)
}

const totals = `
SELECT p.*, (SELECT count(*) FROM refunds WHERE status = 'completed'),
  (SELECT count(*) FROM outbox_events), (SELECT count(*) FROM outbox_events WHERE aggregate_type = 'payments'),
  (SELECT count(*) FROM topic_records),
  (SELECT count(*) FROM exchanges), (SELECT count(*) FROM exchanges WHERE replayed),
  (SELECT count(*) FROM exchanges WHERE code = 'idempotency-key-reused'),
  (SELECT count(*) FROM (SELECT FROM exchanges GROUP BY client_id, key, request HAVING bool_or(status = 0) AND bool_or(replayed)
     AND NOT bool_or((status BETWEEN 200 AND 299 OR status = 402) AND NOT replayed)) found)
FROM (
  SELECT count(*), count(*) FILTER (WHERE status = 'declined' AND payment_method = 'account'), count(*) FILTER (WHERE payment_method = 'card'), count(authorization_expires_at),
    count(*) FILTER (WHERE authorization_expires_at IS NOT NULL AND status = 'completed'),
    count(*) FILTER (WHERE status = 'canceled'), count(*) FILTER (WHERE status = 'expired')
  FROM payments
) p`

// count runs all queries on one snapshot.
func (c *check) count(ctx context.Context) error {
	one := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

	return pgx.BeginTxFunc(ctx, c.conn, one, func(tx pgx.Tx) error {
		c.Progress("count all")
		r := &c.report
		err := tx.QueryRow(ctx, totals).Scan(
			&r.Payments, &r.Declined, &r.ByCard, &r.Authorized, &r.Captured, &r.Canceled, &r.Expired, &r.Refunds, &r.Events, &r.PaymentEvents, &r.Records,
			&r.Exchanges, &r.Replays, &r.MismatchesRefused, &r.Recovered,
		)
		if err != nil {
			return fmt.Errorf("count all: %w", err)
		}

		for _, q := range queries {
			// A line without its source would look fine, so the report names it instead.
			if !c.has(q.needs) {
				r.LeftOut = append(r.LeftOut, q.name)
				continue
			}

			c.Progress("count " + q.name)
			line, err := q.run(ctx, tx)
			if err != nil {
				return fmt.Errorf("count %s: %w", q.name, err)
			}

			// Delivery is at least once, so repeats are wrong only beyond the allowance.
			if q.name == EventsRepeated {
				r.Repeated = line.Wrong
				line.allow(int64(c.MostRepeated))
			}
			r.Lines = append(r.Lines, line)
		}
		return nil
	})
}

// has reports whether a source was given.
func (c *check) has(s source) bool {
	switch s {
	case histories:
		return len(c.History) > 0
	case topics:
		return len(c.Brokers) > 0
	case provider:
		return c.PSP != nil
	}
	return true
}

// query is one line of the report. wrong lists what is wrong and returns no rows when all is
// well; of counts how many units were looked at.
type query struct {
	name  string
	needs source
	unit  string
	of    string
	wrong string
}

// source is what a line needs besides the tables.
type source int

const (
	nothing source = iota
	histories
	topics   // and the consumer's work on them
	provider // the PSP's books
)

// queries is in the order of the report.
var queries = []query{
	{AcknowledgedMissing, histories, "answers", acknowledged, acknowledgedMissing},
	{NobodyAskedFor, histories, "effects", effectsOfHistory, nobodyAskedFor},
	{AnswersChanged, histories, "answers", keptAnswers, answersChanged},
	{ReusedKeysAccepted, histories, "answers", keptAnswers, reusedKeysAccepted},
	{RefusedForNothing, histories, "refusals", refusedAsReused, refusedForNothing},
	{RepeatsUnmarked, histories, "answers", keptAnswers, repeatsUnmarked},
	{KeysTwice, nothing, "effects and answers", effectsAndAnswers, keysTwice},
	{AnswersMissing, nothing, "effects and answers", effectsAndAnswersSince, answersMissing},
	{EventsMissing, nothing, "payments and others", rowsSince, eventsMissing},
	{TransitionsIllegal, nothing, "events", paymentEvents, transitionsIllegal},
	{EventsLost, topics, "events", outboxSince, eventsLost},
	{EventsPhantom, topics, "records", allRecords, eventsPhantom},
	{EventsChanged, topics, "records", allRecords, eventsChanged},
	{EventsRepeated, topics, "records", allRecords, eventsRepeated},
	{EventsOutOfOrder, topics, "records", severalRecords, eventsOutOfOrder},
	{EffectsLost, topics, "records", consumedRecords, effectsLost},
	{EffectsPhantom, topics, "effects", inboxRows, effectsPhantom},
	{StatementsWrong, topics, "statements", statementRows, statementsWrong},
	{PaymentsUnbalanced, nothing, "payments", allPayments, paymentsUnbalanced},
	{RefundsUnbalanced, nothing, "refunds", allRefunds, refundsUnbalanced},
	{PaymentsAstray, nothing, "payments", allPayments, paymentsAstray},
	{BalancesWrong, nothing, "accounts", allAccounts, balancesWrong},
	{HoldsWrong, nothing, "accounts", allAccounts, holdsWrong},
	{OperationsWrong, nothing, "operations", allOperations, operationsWrong},
	{ChargedTwice, provider, "charges and refunds", executed, chargedTwice},
	{ChargedUnbooked, provider, "charges and refunds", executed, chargedUnbooked},
	{BookedUncharged, provider, "operations", succeededOperations, bookedUncharged},
	{PSPDiffers, provider, "operations", succeededOperations, pspDiffers},
}

func (q query) run(ctx context.Context, tx pgx.Tx) (Line, error) {
	line := Line{Name: q.name, Unit: q.unit}
	err := tx.QueryRow(ctx, q.sql()).Scan(&line.Wrong, &line.Of, &line.Examples)
	return line, err
}

func (q query) sql() string {
	return `WITH wrong (id) AS MATERIALIZED (` + q.wrong + `)
SELECT (SELECT count(*) FROM wrong), (` + q.of + `), ARRAY(SELECT id FROM wrong LIMIT ` + strconv.Itoa(mostExamples) + `)`
}

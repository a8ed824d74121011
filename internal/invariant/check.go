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

// Sources says what is compared. Everything must be quiet: clients gone, backlog and lag at zero. What is still on its way
// counts as lost.
type Sources struct {
	DB      *pgxpool.Pool // as the schema's owner. One connection is taken out of it, and closed at the end
	Brokers []string      // none: the lines that need topics are left out, with what a consumer made of them, and the report says so
	// KafkaOptions are for every client that is made: TLS, SASL.
	KafkaOptions []kgo.Opt
	TopicPrefix  string   // topics are the prefix and payments, accounts and whatever else the outbox names
	Consumer     string   // name in inbox_events
	History      []string // files of Exchanges; none: the lines that need them are left out, and the report says so

	// MostRepeated is how many records may be repeats of others. A relay that is killed sends what it had in hand again: two
	// batches for each kill. Zero: none may.
	MostRepeated int

	// Progress is told, every second or so, what is being done. Nil is fine.
	Progress func(doing string)
}

// settings of the one connection. It may come from a program's pool, whose limits are for statements that go by an index; here
// every statement reads whole tables. Settings that a server does not know are left out.
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

// The tables that are compared with the schema's. They are temporary: they go with the connection.
const temporaryTables = `
CREATE TEMP TABLE topic_records (
  aggregate_type text NOT NULL, partition int NOT NULL, "offset" bigint NOT NULL,
  event_id uuid,                -- NULL: it has none
  aggregate_id text NOT NULL,   -- the record's key
  event_type text, aggregate_version bigint, created_at timestamptz, digest bytea NOT NULL,
  malformed text                -- what a consumer would stumble over
);
CREATE TEMP TABLE exchanges (
  client_id uuid NOT NULL, key text COLLATE "C" NOT NULL, request bytea NOT NULL,
  amount_minor bigint NOT NULL, currency text NOT NULL, source_account uuid NOT NULL, destination_account uuid NOT NULL,
  status int NOT NULL, code text NOT NULL, answer bytea, replayed boolean NOT NULL
);
CREATE TEMP TABLE bounds (consumer text COLLATE "C", keep interval, keys_since timestamptz, outbox_since timestamptz, topics_since timestamptz)`

// How far back each place remembers. keep: 24 hours is the least that can be promised.
const insertBounds = `
INSERT INTO bounds (consumer, topics_since, keep, outbox_since)
SELECT $1, coalesce($2, '-infinity'::timestamptz), coalesce((SELECT keep FROM idempotency_retention), '24 hours'), coalesce(
  (SELECT min(to_date(right(c.relname, 8), 'YYYYMMDD')) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
   WHERE i.inhparent = 'outbox_events'::regclass AND c.relname ~ '^outbox_events_[0-9]{8}$')::timestamp AT TIME ZONE 'UTC', '-infinity')`

const finishBounds = `UPDATE bounds SET keys_since = now() - keep; ANALYZE topic_records; ANALYZE exchanges; ANALYZE bounds`

const aggregateTypes = `SELECT aggregate_type FROM outbox_events UNION VALUES ('payments'), ('accounts')`

// Check counts. An error means that it could not; what it counted and found wrong is in the report.
func Check(ctx context.Context, s Sources) (Report, error) {
	pooled, err := s.DB.Acquire(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("check invariants: connect: %w", err)
	}
	conn := pooled.Hijack() // its settings and tables are not for others
	defer conn.Close(context.WithoutCancel(ctx))
	c := check{Sources: s, conn: conn}
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
	report Report
}

// gather brings histories and topics to where the tables are.
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
	rows, err := c.conn.Query(ctx, aggregateTypes) // CollectRows returns its error
	if err != nil {
		return nil, fmt.Errorf("find topics: %w", err)
	}
	types, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find topics: %w", err)
	}
	return copyTopics(ctx, c.conn, c.Sources, types, c.Progress)
}

const totals = `
SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM payments WHERE status = 'declined'), (SELECT count(*) FROM outbox_events),
  (SELECT count(*) FROM topic_records),
  (SELECT count(*) FROM exchanges), (SELECT count(*) FROM exchanges WHERE replayed),
  (SELECT count(*) FROM exchanges WHERE code = 'idempotency-key-reused'),
  (SELECT count(*) FROM (SELECT FROM exchanges GROUP BY client_id, key, request HAVING bool_or(status = 0) AND bool_or(replayed)
     AND NOT bool_or((status BETWEEN 200 AND 299 OR status = 402) AND NOT replayed)) found)`

// count runs the queries, all of them on one snapshot.
func (c *check) count(ctx context.Context) error {
	one := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, c.conn, one, func(tx pgx.Tx) error {
		c.Progress("count all")
		r := &c.report
		err := tx.QueryRow(ctx, totals).Scan(&r.Payments, &r.Declined, &r.Events, &r.Records, &r.Exchanges, &r.Replays, &r.MismatchesRefused, &r.Recovered)
		if err != nil {
			return fmt.Errorf("count all: %w", err)
		}
		for _, q := range queries {
			if q.needs == histories && len(c.History) == 0 || q.needs == topics && len(c.Brokers) == 0 {
				r.LeftOut = append(r.LeftOut, q.name)
				continue
			}
			c.Progress("count " + q.name)
			line, err := q.run(ctx, tx)
			if err != nil {
				return fmt.Errorf("count %s: %w", q.name, err)
			}
			if q.name == EventsRepeated {
				r.Repeated = line.Wrong
				line.allow(int64(c.MostRepeated))
			}
			r.Lines = append(r.Lines, line)
		}
		return nil
	})
}

// query is one line of the report: wrong lists what is wrong, and nothing when all is well; of says how many were looked at.
type query struct {
	name  string
	needs source
	of    string
	wrong string
}

// source is what a line needs beside the tables.
type source int

const (
	nothing source = iota
	histories
	topics // and what a consumer made of them
)

// queries in the order of the report.
var queries = []query{
	{AcknowledgedMissing, histories, acknowledged, acknowledgedMissing},
	{NobodyAskedFor, histories, paymentsOfHistory, nobodyAskedFor},
	{AnswersChanged, histories, keptAnswers, answersChanged},
	{ReusedKeysAccepted, histories, keptAnswers, reusedKeysAccepted},
	{RefusedForNothing, histories, refusedAsReused, refusedForNothing},
	{RepeatsUnmarked, histories, keptAnswers, repeatsUnmarked},
	{KeysTwice, nothing, paymentsAndAnswers, keysTwice},
	{AnswersMissing, nothing, paymentsAndAnswersSince, answersMissing},
	{EventsMissing, nothing, paymentsAndAccountsSince, eventsMissing},
	{EventsLost, topics, outboxSince, eventsLost},
	{EventsPhantom, topics, allRecords, eventsPhantom},
	{EventsChanged, topics, allRecords, eventsChanged},
	{EventsRepeated, topics, allRecords, eventsRepeated},
	{EventsOutOfOrder, topics, severalRecords, eventsOutOfOrder},
	{EffectsLost, topics, consumedRecords, effectsLost},
	{EffectsPhantom, topics, inboxRows, effectsPhantom},
	{StatementsWrong, topics, statementRows, statementsWrong},
	{PaymentsUnbalanced, nothing, allPayments, paymentsUnbalanced},
	{PaymentsAstray, nothing, allPayments, paymentsAstray},
	{BalancesWrong, nothing, allAccounts, balancesWrong},
}

func (q query) run(ctx context.Context, tx pgx.Tx) (Line, error) {
	line := Line{Name: q.name}
	err := tx.QueryRow(ctx, q.sql()).Scan(&line.Wrong, &line.Of, &line.Examples)
	return line, err
}

func (q query) sql() string {
	return `WITH wrong (id) AS MATERIALIZED (` + q.wrong + `)
SELECT (SELECT count(*) FROM wrong), (` + q.of + `), ARRAY(SELECT id FROM wrong LIMIT ` + strconv.Itoa(mostExamples) + `)`
}

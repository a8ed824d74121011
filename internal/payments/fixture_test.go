package payments_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

// bank is a tenant of its own with a Processor, and the accounts it opened.
type bank struct {
	*payments.Processor
	owner          *pgxpool.Pool
	tenant, client uuid.UUID
	system         uuid.UUID // in USD
}

func newBank(t *testing.T, tracer pgx.QueryTracer) *bank {
	t.Helper()
	db := testenv.Database(t)
	config, err := pgxpool.ParseConfig(db.URLAs("api_write"))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns, config.ConnConfig.Tracer = 8, tracer
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := &bank{
		Processor: &payments.Processor{DB: pool, Retention: idempotency.DefaultRetention, Render: render},
		owner:     db.Pool(t, ""), tenant: uuid.New(), client: uuid.New(),
	}
	b.system = b.open(t, payments.System, "USD")
	return b
}

// render writes what the API would write: what was recorded, or else the refusal.
func render(o payments.Outcome) idempotency.Response {
	r := idempotency.Response{Status: 201, ContentType: "application/json", Body: o.JSON}
	switch {
	case o.Refusal != nil && o.JSON != nil:
		r.Status = 402
	case o.Refusal != nil:
		r.Status = 422
		r.Body, _ = json.Marshal(o.Refusal)
	case o.Payment != nil && o.Payment.Version > 1:
		r.Status = 200
	}
	return r
}

func (b *bank) request(c payments.Command) payments.Request {
	command, _ := json.Marshal(c)
	return payments.Request{
		Request: idempotency.Request{
			TenantID: b.tenant, ClientID: b.client, Key: uuid.NewString(), RequestID: uuid.NewString(),
			Fingerprint: idempotency.NewFingerprint(b.tenant, "POST", "/x", nil, command),
		},
		Method: "POST", Route: "/x", Headers: map[string]string{"traceparent": "00-1-2-01"}, Command: c,
	}
}

func (b *bank) pay(from, to uuid.UUID, amount int64) payments.Request {
	return b.request(payments.CreatePayment{AmountMinor: amount, Currency: "USD", SourceAccount: from, DestinationAccount: to, MayFund: from == b.system})
}

// Process is the Processor's for a caller that waits until its accounts are free. On a busy machine
// a transaction of ours may take so long that its accounts are taken for held.
func (b *bank) Process(ctx context.Context, rs []payments.Request) ([]idempotency.Answer, error) {
	as, err := b.Processor.Process(ctx, rs)
	for i := range as {
		for err == nil && as[i].State == idempotency.Busy && b.Await(ctx, rs[i]) {
			var one []idempotency.Answer
			if one, err = b.Processor.Process(ctx, rs[i:i+1]); err == nil {
				as[i] = one[0]
			}
		}
	}
	return as, err
}

func (b *bank) process(t testing.TB, rs ...payments.Request) []idempotency.Answer {
	t.Helper()
	as, err := b.Process(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	return as
}

func (b *bank) open(t testing.TB, kind payments.Kind, currency string) uuid.UUID {
	t.Helper()
	return decode[payments.Account](t, b.process(t, b.request(payments.CreateAccount{Kind: kind, Currency: currency, Name: "a"}))[0]).ID
}

// customer opens an account with some money.
func (b *bank) customer(t testing.TB, balance int64) uuid.UUID {
	t.Helper()
	id := b.open(t, payments.Customer, "USD")
	if balance > 0 {
		wantStatus(t, b.process(t, b.pay(b.system, id, balance))[0], 201)
	}
	return id
}

func (b *bank) balance(t testing.TB, account uuid.UUID) int64 {
	t.Helper()
	return count(t, b.owner, `SELECT balance_minor FROM accounts WHERE id = $1`, account)
}

func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int64) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func decode[T any](t testing.TB, a idempotency.Answer) (document T) {
	t.Helper()
	if err := json.Unmarshal(a.Response.Body, &document); err != nil {
		t.Fatalf("%d %q: %v", a.Response.Status, a.Response.Body, err)
	}
	return document
}

func wantStatus(t testing.TB, a idempotency.Answer, status int) {
	t.Helper()
	if a.Response.Status != status {
		t.Errorf("answered %s %d %s, want %d", a.State, a.Response.Status, a.Response.Body, status)
	}
}

// wantBalanced checks every law that the tables must obey at any moment.
func (b *bank) wantBalanced(t testing.TB) {
	t.Helper()
	for law, sql := range map[string]string{
		"a balance is the sum of its entries": `SELECT count(*) FROM accounts a LEFT JOIN
			(SELECT account_id, sum(amount_minor) s, count(*) n, max(entry_no) m FROM ledger_entries GROUP BY 1) e ON e.account_id = a.id
			WHERE a.balance_minor <> coalesce(e.s, 0) OR a.entry_count <> coalesce(e.n, 0) OR a.entry_count <> coalesce(e.m, 0)`,
		"entries follow each other without a gap": `SELECT count(*) FROM (SELECT entry_no, balance_after_minor, row_number() OVER w n, sum(amount_minor) OVER w s
			FROM ledger_entries WINDOW w AS (PARTITION BY account_id ORDER BY entry_no)) e WHERE entry_no <> n OR balance_after_minor <> s`,
		"entries of a completed payment are what was captured, of another one there are none": `SELECT count(*) FROM payments p LEFT JOIN
			(SELECT payment_id, sum(amount_minor) s, count(*) n, max(amount_minor) a, count(DISTINCT currency) c, min(currency) cur
			 FROM ledger_entries WHERE refund_id IS NULL GROUP BY 1) e ON e.payment_id = p.id
			WHERE CASE p.status WHEN 'completed' THEN (e.s = 0 AND e.n = 2 AND e.a = p.amount_minor - p.released_minor AND e.c = 1 AND e.cur = p.currency) IS NOT TRUE
			ELSE e.n IS NOT NULL END`,
		"entries of a completed refund are its amount, of a declined one there are none": `SELECT count(*) FROM refunds r LEFT JOIN
			(SELECT refund_id, min(payment_id::text) p, sum(amount_minor) s, count(*) n, max(amount_minor) a, count(DISTINCT currency) c, min(currency) cur
			 FROM ledger_entries GROUP BY 1) e ON e.refund_id = r.id
			WHERE CASE r.status WHEN 'completed' THEN (e.s = 0 AND e.n = 2 AND e.a = r.amount_minor AND e.c = 1 AND e.cur = r.currency AND e.p = r.payment_id::text) IS NOT TRUE
			ELSE e.n IS NOT NULL END`,
		"an entry is of its payment's account": `SELECT count(*) FROM ledger_entries e LEFT JOIN payments p ON p.id = e.payment_id
			WHERE (e.account_id = CASE WHEN (e.amount_minor < 0) = (e.refund_id IS NULL) THEN p.source_account ELSE p.destination_account END) IS NOT TRUE`,
		"an entry is of its refund's account": `SELECT count(*) FROM ledger_entries e LEFT JOIN refunds r ON r.id = e.refund_id
			WHERE e.refund_id IS NOT NULL AND (e.account_id = CASE WHEN e.amount_minor < 0 THEN r.source_account ELSE r.destination_account END) IS NOT TRUE`,
		"refunded is the sum of the completed refunds": `SELECT count(*) FROM payments p LEFT JOIN
			(SELECT payment_id, sum(amount_minor) s FROM refunds WHERE status = 'completed' GROUP BY 1) r ON r.payment_id = p.id
			WHERE p.refunded_minor <> coalesce(r.s, 0) OR p.refunded_minor > p.amount_minor - p.released_minor`,
		"what is held is the sum of the authorized payments and the processing refunds": `SELECT count(*) FROM accounts a LEFT JOIN
			(SELECT source_account, sum(amount_minor) s FROM
				(SELECT source_account, amount_minor FROM payments WHERE status = 'authorized'
				 UNION ALL SELECT source_account, amount_minor FROM refunds WHERE status = 'processing') h GROUP BY 1) p ON p.source_account = a.id
			WHERE a.held_minor <> coalesce(p.s, 0)`,
		"what is being refunded is the sum of the processing refunds": `SELECT count(*) FROM payments p LEFT JOIN
			(SELECT payment_id, sum(amount_minor) s FROM refunds WHERE status = 'processing' GROUP BY 1) r ON r.payment_id = p.id
			WHERE p.refunding_minor <> coalesce(r.s, 0)`,
		"a payment by card has one charge, which ended as it did": `SELECT count(*) FROM (SELECT * FROM payments WHERE payment_method = 'card') p
			FULL JOIN (SELECT * FROM psp_operations WHERE kind = 'charge') o ON o.payment_id = p.id
			WHERE (o.tenant_id = p.tenant_id AND o.amount_minor = p.amount_minor AND o.currency = p.currency AND CASE p.status
				WHEN 'processing' THEN o.ended_at IS NULL WHEN 'completed' THEN o.state = 'succeeded' ELSE o.state = p.status AND o.code = p.decline_code END) IS NOT TRUE`,
		"a refund to a card has one operation, which ended as it did": `SELECT count(*) FROM
			(SELECT r.* FROM refunds r JOIN payments p ON p.id = r.payment_id WHERE p.payment_method = 'card' AND (r.status = 'processing' OR r.settled_at IS NOT NULL)) r
			FULL JOIN (SELECT * FROM psp_operations WHERE kind = 'refund') o ON o.refund_id = r.id
			WHERE (o.tenant_id = r.tenant_id AND o.payment_id = r.payment_id AND o.amount_minor = r.amount_minor AND o.currency = r.currency AND CASE r.status
				WHEN 'processing' THEN o.ended_at IS NULL WHEN 'completed' THEN o.state = 'succeeded' ELSE o.state = r.status AND o.code = r.decline_code END) IS NOT TRUE`,
		"the events of a payment are numbered 1, 2, 3 in the order of the outbox, up to its version": `SELECT count(*) FROM payments p FULL JOIN
			(SELECT aggregate_id, count(*) n, bool_and(aggregate_version = i) ordered, (array_agg(event_type ORDER BY id DESC)
				FILTER (WHERE event_type LIKE 'payment.%'))[1] last FROM
				(SELECT *, row_number() OVER (PARTITION BY aggregate_id ORDER BY id) i FROM outbox_events WHERE aggregate_type = 'payments') o GROUP BY 1) o
			ON o.aggregate_id = p.id::text WHERE (o.ordered AND o.n = p.version AND o.last = 'payment.' || p.status) IS NOT TRUE`,
		"every refund has its one event, and one more if it was settled, in its type": `SELECT count(*) FROM refunds r FULL JOIN
			(SELECT convert_from(payload, 'utf8')::jsonb ->> 'id' AS refund_id, aggregate_id, count(*) n, min(aggregate_version) first,
				(array_agg(event_type ORDER BY id DESC))[1] last FROM outbox_events WHERE event_type LIKE 'refund.%' GROUP BY 1, 2) o ON o.refund_id = r.id::text
			WHERE (o.last = 'refund.' || r.status AND o.aggregate_id = r.payment_id::text AND o.first = r.payment_version
				AND o.n = CASE WHEN r.settled_at IS NULL THEN 1 ELSE 2 END) IS NOT TRUE`,
		"every command is in the audit trail": `SELECT count(*) FROM payment_commands c FULL JOIN
			(SELECT * FROM outbox_events WHERE aggregate_type = 'payments' AND aggregate_version > 1 AND event_type <> 'payment.expired'
				AND NOT convert_from(payload, 'utf8')::jsonb ? 'settled_at') o
			ON o.aggregate_id = c.payment_id::text AND o.aggregate_version = c.version
			LEFT JOIN idempotency_keys k ON k.key = c.idempotency_key AND k.tenant_id = c.tenant_id AND k.client_id = c.client_id
				AND k.fingerprint = c.fingerprint AND k.request_id = c.request_id
			WHERE (k.body = o.payload) IS NOT TRUE`,
		"every account has its one event": `SELECT count(*) FROM accounts a FULL JOIN (SELECT * FROM outbox_events WHERE aggregate_type = 'accounts') o
			ON o.aggregate_id = a.id::text WHERE (o.event_type = 'account.opened' AND o.aggregate_version = 1) IS NOT TRUE`,
		"no event is told twice": `SELECT count(*) - count(DISTINCT event_id) + count(*) - count(DISTINCT (aggregate_id, aggregate_version)) FROM outbox_events`,
		"an event says what the answer said": `SELECT count(*) FROM outbox_events o WHERE NOT EXISTS (
			SELECT FROM idempotency_keys k WHERE k.body = o.payload AND k.status = CASE WHEN o.event_type LIKE '%.declined' THEN 402
				WHEN o.event_type LIKE 'payment.%' AND o.aggregate_version > 1 THEN 200 ELSE 201 END) AND o.event_type <> 'payment.expired'
			AND NOT convert_from(o.payload, 'utf8')::jsonb ? 'settled_at'`,
		"every answered payment is recorded under its key": `SELECT count(*) FROM payments p FULL JOIN (SELECT * FROM idempotency_keys
			WHERE convert_from(body, 'utf8')::jsonb ? 'processed_at' AND NOT convert_from(body, 'utf8')::jsonb ? 'payment_version'
			AND coalesce(convert_from(body, 'utf8')::jsonb ->> 'version', '1') = '1') k ON k.key = p.idempotency_key AND k.tenant_id = p.tenant_id AND k.client_id = p.client_id
			AND k.fingerprint = p.fingerprint AND k.request_id = p.request_id WHERE p.id IS NULL OR k.key IS NULL`,
		"no customer owes": `SELECT count(*) FROM accounts WHERE kind = 'customer' AND balance_minor - held_minor < 0`,
	} {
		if n := count(t, b.owner, sql); n != 0 {
			t.Errorf("broken %d times: %s", n, law)
		}
	}
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

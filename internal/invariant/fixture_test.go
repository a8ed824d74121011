package invariant_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/relay/kafka"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/testenv"
)

// world is a service that has run: its tables, what its client saw, and the messages that its relay is about to send.
type world struct {
	db             *pgxpool.Pool // as the owner
	brokers        []string
	prefix         string
	processor      *payments.Processor
	tenant, client uuid.UUID
	system, a, b   uuid.UUID // accounts

	held, captured, canceled, expired, refunded uuid.UUID // payments
	charged, declinedCard, waiting              uuid.UUID // by card
	clearing                                    uuid.UUID
	psp                                         []invariant.PSPEntry // the PSP's books

	history  []invariant.Exchange
	messages []relay.Message
	kept     *relay.Message // taken out of messages by a test
}

// newWorld makes a service in which everything is right: payments, declined ones, repeats, refusals and reused keys, payments with
// a whole life, and an aggregate "orders 7" with three events.
func newWorld(t *testing.T) *world {
	t.Helper()
	db := testenv.Database(t)
	w := &world{
		db: db.Pool(t, ""), brokers: testenv.Brokers(t), prefix: testenv.TopicPrefix(t), tenant: uuid.New(), client: uuid.New(),
		processor: &payments.Processor{DB: db.Pool(t, "api_write"), Retention: idempotency.DefaultRetention, Render: httpapi.Render},
	}
	// Tests move rows to other days.
	if _, err := w.db.Exec(t.Context(), `CREATE TABLE other_days_keys PARTITION OF idempotency_keys DEFAULT;
		CREATE TABLE other_days_events PARTITION OF outbox_events DEFAULT`); err != nil {
		t.Fatal(err)
	}
	w.system, w.a, w.b = w.open(t, payments.System), w.open(t, payments.Customer), w.open(t, payments.Customer)
	for _, account := range []uuid.UUID{w.a, w.b} {
		w.history = append(w.history, w.pay(t, w.system, account, 10_000)...)
	}
	for amount := range int64(4) {
		w.history = append(w.history, w.pay(t, w.a, w.b, 10+amount)...)
		w.history = append(w.history, w.pay(t, w.b, w.a, 100+amount)...)
	}
	declined := w.pay(t, w.a, w.b, 1_000_000)
	unknown := w.pay(t, w.a, uuid.New(), 1)
	w.history = append(append(w.history, declined...), unknown...)

	w.live(t)
	w.cards(t)

	// What a service refuses, and what goes wrong on the way, is no answer of a key's own.
	reused := declined[0]
	reused.Request, reused.AmountMinor, reused.Status, reused.Code, reused.Answer = digest("other"), 1, 422, "idempotency-key-reused", digest("reused")
	busy := declined[0]
	busy.Status, busy.Code, busy.Answer = 409, "request-in-progress", digest("busy")
	w.history = append(w.history, reused, busy, cutOff(declined[0]))

	versions := []outbox.Event{}
	for v := range int64(3) {
		versions = append(versions, outbox.Event{
			ID: uuid.New(), AggregateType: "orders", AggregateID: "7", AggregateVersion: v + 1, Type: "order.changed", Payload: []byte(`{"order":7}`),
		})
	}
	w.append(t, versions...)
	return w
}

func (w *world) open(t *testing.T, kind payments.Kind) uuid.UUID {
	t.Helper()
	var account payments.Account
	answer := w.process(t, uuid.NewString(), payments.CreateAccount{Kind: kind, Currency: "USD"})
	if err := json.Unmarshal(answer.Response.Body, &account); err != nil || answer.Response.Status != 201 {
		t.Fatalf("open account: %d %s %v", answer.Response.Status, answer.Response.Body, err)
	}
	return account.ID
}

// live adds payments of which each has another end, three refunds of one of them, and what a client is refused on the way.
func (w *world) live(t *testing.T) {
	t.Helper()
	done := func(x []invariant.Exchange, code string) {
		t.Helper()
		if x[0].Code != code {
			t.Fatalf("%s is answered with %d %q, want %q", x[0].Command, x[0].Status, x[0].Code, code)
		}
		w.history = append(w.history, x...)
	}
	authorized := func(amount int64, d time.Duration) (id uuid.UUID) {
		t.Helper()
		x := w.authorize(t, w.a, w.b, amount, d)
		done(x, "")
		if err := w.db.QueryRow(t.Context(), `SELECT id FROM payments WHERE idempotency_key = $1`, x[0].Key).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}

	w.held, w.captured, w.canceled = authorized(40, time.Hour), authorized(50, time.Hour), authorized(60, time.Hour)
	done(w.capture(t, w.captured, 51), "amount-exceeds-authorized")
	done(w.capture(t, w.captured, 30), "")
	done(w.cancel(t, w.canceled), "")
	done(w.capture(t, w.canceled, 0), "invalid-state")

	w.expired = authorized(70, time.Millisecond)
	testenv.Eventually(t, time.Minute, func() error {
		if n, err := w.processor.ExpireBatch(t.Context(), 10); err != nil || n != 1 {
			return fmt.Errorf("%d expired, %w", n, err)
		}
		return nil
	})

	// The payee of the last one has spent it.
	w.refunded = authorized(80, time.Hour)
	done(w.capture(t, w.refunded, 0), "")
	done(w.refund(t, w.refunded, 30), "")
	done(w.refund(t, w.refunded, 51), "amount-exceeds-captured")
	spend := w.pay(t, w.b, w.a, w.available(t, w.b))
	done(spend, "")
	done(w.refund(t, w.refunded, 20), "insufficient-funds")
	done(w.pay(t, w.a, w.b, spend[0].AmountMinor), "")
	done(w.refund(t, w.refunded, 0), "")
}

func (w *world) available(t *testing.T, account uuid.UUID) (n int64) {
	t.Helper()
	if err := w.db.QueryRow(t.Context(), `SELECT balance_minor - held_minor FROM accounts WHERE id = $1`, account).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// cards adds payments by card that have ended in every way, one that has not, and refunds alike.
func (w *world) cards(t *testing.T) {
	t.Helper()
	w.clearing = w.open(t, payments.Clearing)
	w.charged = w.charge(t, 1000)
	w.settleCard(t, payments.Succeeded)
	w.declinedCard = w.charge(t, 2000)
	w.settleCard(t, payments.OperationDeclined)
	w.charge(t, 3000)
	w.settleCard(t, payments.OperationFailed)
	for _, end := range []payments.OperationState{payments.Succeeded, payments.OperationDeclined, payments.OperationFailed} {
		w.history = append(w.history, w.refund(t, w.charged, 100)...)
		w.settleCard(t, end)
	}
	w.history = append(w.history, w.refund(t, w.charged, 200)...)
	spend := w.pay(t, w.b, w.a, w.available(t, w.b))
	w.history = append(w.history, spend...)
	w.history = append(w.history, w.refund(t, w.charged, 300)...) // declined at once
	w.history = append(w.history, w.pay(t, w.a, w.b, spend[0].AmountMinor)...)
	w.waiting = w.charge(t, 4000)
}

func (w *world) charge(t *testing.T, amount int64) (id uuid.UUID) {
	t.Helper()
	x := w.ask(t, invariant.Exchange{Command: invariant.Charge, AmountMinor: amount, Currency: "USD", DestinationAccount: w.b},
		payments.CreatePayment{AmountMinor: amount, Currency: "USD", DestinationAccount: w.b, Card: "tok_visa"})
	w.history = append(w.history, x...)
	if err := w.db.QueryRow(t.Context(), `SELECT id FROM payments WHERE idempotency_key = $1`, x[0].Key).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// settleCard does what a worker does with the operation that waits, at a PSP whose books are w.psp.
func (w *world) settleCard(t *testing.T, end payments.OperationState) {
	t.Helper()
	claimed, err := w.processor.ClaimOperations(t.Context(), 10, time.Minute)
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%d claimed: %v", len(claimed), err)
	}
	o := claimed[0]
	r := payments.Result{OperationID: o.ID, State: end, Token: o.Token}
	if end != payments.OperationFailed {
		r.Reference = fmt.Sprintf("%s_%d", o.Kind, len(w.psp))
		w.psp = append(w.psp, invariant.PSPEntry{
			Kind: string(o.Kind), Reference: r.Reference, ChargeReference: o.ChargeReference, OperationID: o.ID.String(),
			AmountMinor: o.AmountMinor, Currency: o.Currency, Declined: end == payments.OperationDeclined,
		})
	}
	recorded, err := w.processor.Record(t.Context(), []payments.Result{r})
	if err != nil || recorded[0] != payments.Applied {
		t.Fatalf("%v: %v", recorded, err)
	}
}

// pay asks for a payment under a key of its own and repeats the request. It returns what the client saw, and notes nothing.
func (w *world) pay(t *testing.T, from, to uuid.UUID, amount int64) []invariant.Exchange {
	t.Helper()
	return w.ask(t, invariant.Exchange{Command: invariant.Pay, AmountMinor: amount, Currency: "USD", SourceAccount: from, DestinationAccount: to},
		payments.CreatePayment{AmountMinor: amount, Currency: "USD", SourceAccount: from, DestinationAccount: to, MayFund: true})
}

// authorize and the next three are like pay.
func (w *world) authorize(t *testing.T, from, to uuid.UUID, amount int64, d time.Duration) []invariant.Exchange {
	t.Helper()
	return w.ask(t, invariant.Exchange{Command: invariant.Authorize, AmountMinor: amount, Currency: "USD", SourceAccount: from, DestinationAccount: to},
		payments.CreatePayment{AmountMinor: amount, Currency: "USD", SourceAccount: from, DestinationAccount: to, Authorization: d})
}

func (w *world) capture(t *testing.T, id uuid.UUID, amount int64) []invariant.Exchange {
	t.Helper()
	return w.ask(t, invariant.Exchange{Command: invariant.Capture, PaymentID: id, AmountMinor: amount},
		payments.CapturePayment{Target: payments.Target{PaymentID: id}, AmountMinor: amount})
}

func (w *world) cancel(t *testing.T, id uuid.UUID) []invariant.Exchange {
	t.Helper()
	return w.ask(t, invariant.Exchange{Command: invariant.Cancel, PaymentID: id},
		payments.CancelPayment{Target: payments.Target{PaymentID: id}})
}

func (w *world) refund(t *testing.T, id uuid.UUID, amount int64) []invariant.Exchange {
	t.Helper()
	return w.ask(t, invariant.Exchange{Command: invariant.Refund, PaymentID: id, AmountMinor: amount},
		payments.RefundPayment{Target: payments.Target{PaymentID: id}, AmountMinor: amount})
}

// ask sends a command twice under one key of its own. It returns x as the client saw it.
func (w *world) ask(t *testing.T, x invariant.Exchange, command payments.Command) []invariant.Exchange {
	t.Helper()
	x.ClientID, x.Key = w.client, uuid.NewString()
	var seen []invariant.Exchange
	for range 2 {
		answer := w.process(t, x.Key, command)
		var problem struct {
			Code string `json:"code"`
		}
		if err := json.Unmarshal(answer.Response.Body, &problem); err != nil {
			t.Fatal(err)
		}
		body, _ := json.Marshal(command) // a plain struct
		x.Request, x.Status, x.Code = digest(string(x.Command)+string(body)), answer.Response.Status, problem.Code
		x.Answer, x.Replayed = digest(string(answer.Response.Body)), answer.State == idempotency.Replay
		seen = append(seen, x)
	}
	return seen
}

func (w *world) process(t *testing.T, key string, command payments.Command) idempotency.Answer {
	t.Helper()
	canonical, _ := json.Marshal(command) // a plain struct
	answers, err := w.processor.Process(t.Context(), []payments.Request{{
		Request: idempotency.Request{
			TenantID: w.tenant, ClientID: w.client, Key: key, RequestID: uuid.NewString(),
			Fingerprint: idempotency.NewFingerprint(w.tenant, "POST", "/v1/payments", nil, canonical),
		},
		Method: "POST", Route: "/v1/payments", Command: command,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return answers[0]
}

func (w *world) append(t *testing.T, events ...outbox.Event) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, events) }); err != nil {
		t.Fatal(err)
	}
}

// load reads the messages that the relay would send.
func (w *world) load(t *testing.T) {
	t.Helper()
	rows, err := w.db.Query(t.Context(), `
		SELECT id, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers, created_at FROM outbox_events ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	if w.messages, err = pgx.CollectRows(rows, pgx.RowToStructByPos[relay.Message]); err != nil {
		t.Fatal(err)
	}
}

// consume does what the consumer does with the messages.
func (w *world) consume(t *testing.T) {
	t.Helper()
	var events []inbox.Event
	var ids []uuid.UUID
	var times []time.Time
	for _, m := range w.messages {
		if m.AggregateType != "orders" {
			events = append(events, inbox.Event{ID: m.EventID, Type: m.Type, Subject: m.AggregateID, Payload: m.Payload})
			ids, times = append(ids, m.EventID), append(times, m.CreatedAt)
		}
	}
	if err := inbox.MakeDays(t.Context(), w.db, times...); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
		if _, err := inbox.OnceEach(t.Context(), tx, statements.Consumer, ids, times); err != nil {
			return err
		}
		return statements.Handle(t.Context(), tx, events)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// publish sends the messages as the relay does.
func (w *world) publish(t *testing.T) {
	t.Helper()
	k := kafka.Producer{Brokers: w.brokers, TopicPrefix: w.prefix, Topics: []string{"payments", "accounts", "orders"}, Source: "/oncepay"}
	var publisher relay.Publisher
	testenv.Eventually(t, time.Minute, func() (err error) { // a broker may not know yet the topics that its controller has made
		publisher, _, err = k.Open(t.Context(), "main", "")
		return err
	})
	defer publisher.Close()

	admin := kadm.NewClient(w.kafka(t))
	testenv.Eventually(t, time.Minute, func() error { // the leader of each partition answers this
		ends, err := admin.ListEndOffsets(t.Context(), w.prefix+"payments", w.prefix+"accounts", w.prefix+"orders")
		return errors.Join(err, ends.Error())
	})

	if err := publisher.Publish(t.Context(), w.messages, relay.Progress{}); err != nil {
		t.Fatal(err)
	}
}

// settle lets the events arrive.
func (w *world) settle(t *testing.T) {
	t.Helper()
	w.load(t)
	w.consume(t)
	w.publish(t)
}

// check counts, with the history in a file.
func (w *world) check(t *testing.T, change ...func(*invariant.Sources)) invariant.Report {
	t.Helper()
	s := invariant.Sources{DB: w.db, Brokers: w.brokers, TopicPrefix: w.prefix, Consumer: statements.Consumer, History: []string{w.historyFile(t)}, PSP: w.psp}
	for _, c := range change {
		c(&s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	report, err := invariant.Check(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func (w *world) historyFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "history.jsonl")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buffer := bufio.NewWriter(f)
	encoder := json.NewEncoder(buffer)
	for _, x := range w.history {
		if err := encoder.Encode(x); err != nil {
			t.Fatal(err)
		}
	}
	if err := buffer.Flush(); err != nil {
		t.Fatal(err)
	}
	return name
}

// exec changes what no program may: on one connection, past triggers and foreign keys.
func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL session_replication_role = replica`); err != nil {
			return err
		}
		tag, err := tx.Exec(t.Context(), sql, args...)
		if err == nil && tag.RowsAffected() == 0 {
			t.Errorf("changed nothing: %s", sql)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// kafka is a client of the test's own.
func (w *world) kafka(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(w.brokers...), kgo.UnknownTopicRetries(-1)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// produce sends records as they are, each to the partition that it names.
func (w *world) produce(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	if err := w.kafka(t, kgo.RecordPartitioner(kgo.ManualPartitioner())).ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// headersOf makes the headers that the relay would.
func headersOf(m *relay.Message) []kgo.RecordHeader {
	var headers []kgo.RecordHeader
	for _, h := range [][2]string{
		{"ce_id", m.EventID.String()}, {"ce_type", m.Type}, {"ce_subject", m.AggregateID}, {"ce_sequence", strconv.FormatInt(*m.AggregateVersion, 10)},
		{"ce_time", m.CreatedAt.UTC().Format(time.RFC3339Nano)},
	} {
		headers = append(headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
	}
	return headers
}

// usedPartition finds the one partition of a topic that has records.
func (w *world) usedPartition(t *testing.T, aggregateType string) int32 {
	t.Helper()
	ends, err := w.admin(t).ListEndOffsets(t.Context(), w.prefix+aggregateType)
	if err != nil {
		t.Fatal(err)
	}
	used := int32(-1)
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			used = o.Partition
		}
	})
	return used
}

func (w *world) admin(t *testing.T) *kadm.Client { return kadm.NewClient(w.kafka(t)) }

func digest(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

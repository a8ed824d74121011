package invariant_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/relay"
	"github.com/oncepay/oncepay/internal/statements"
)

func TestHealthyBooksAreGreenInEveryLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// As an operator's command stores its answers: nobody is told where to look.
	w.exec(t, `UPDATE idempotency_keys SET location = '' WHERE key = $1 AND location LIKE '%/payments/%'`, w.history[0].Key)
	w.settle(t)
	r := w.check(t)
	wantWrong(t, r)
	for _, line := range r.Lines {
		if line.Of == 0 {
			t.Errorf("%s: looked at nothing", line.Name)
		}
	}
	got := []int64{r.Payments, r.Declined, r.Events, r.Records, r.Repeated, r.Exchanges, r.Replays, r.MismatchesRefused}
	if diff := cmp.Diff([]int64{24, 1, 49, 49, 0, 81, 39, 1}, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
	got = []int64{r.Authorized, r.Captured, r.Canceled, r.Expired, r.Refunds}
	if diff := cmp.Diff([]int64{5, 2, 1, 1, 3}, got); diff != "" {
		t.Errorf("lives (-want +got):\n%s", diff)
	}
}

// wantWrong fails unless these lines, and no others, found something.
func wantWrong(t *testing.T, r invariant.Report, want ...string) {
	t.Helper()
	var wrong []string
	for _, line := range r.Lines {
		if line.Wrong > 0 {
			wrong = append(wrong, line.Name)
			if len(line.Examples) == 0 || len(line.Examples) > 3 {
				t.Errorf("%s: examples %q", line.Name, line.Examples)
			}
			t.Logf("%s: %d of %d: %q", line.Name, line.Wrong, line.Of, line.Examples)
		}
	}
	slices.Sort(wrong)
	slices.Sort(want)
	if diff := cmp.Diff(want, wrong); diff != "" {
		t.Errorf("lines that are wrong (-want +got):\n%s", diff)
	}
	if r.OK() != (len(want) == 0) {
		t.Errorf("OK is %t", r.OK())
	}
}

// defect breaks one thing: before the events are on their way, or when they are consumed and about to be published, or in the end.
type defect struct {
	line                   string
	before, between, after func(*testing.T, *world)
}

var defects = map[string]defect{
	"a payment was acknowledged and is not there": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		x := w.history[0]
		x.Key = "gone"
		w.history = append(w.history, x)
	}},
	"a payment was acknowledged with another amount": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		for i := range w.history {
			if w.history[i].Key == w.history[0].Key {
				w.history[i].AmountMinor++
			}
		}
	}},
	"a declined payment was acknowledged as completed": {line: invariant.AcknowledgedMissing, after: func(t *testing.T, w *world) {
		x := w.declined()
		x.Key, x.Status, x.Code = "gone", 201, ""
		w.history = append(w.history, x)
	}},
	"a hold was acknowledged as a payment": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		w.told(invariant.Authorize).Command = invariant.Pay
	}},
	"a capture was acknowledged with another amount": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		w.told(invariant.Capture).AmountMinor++
	}},
	"a cancel of another payment was acknowledged": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		w.told(invariant.Cancel).PaymentID = w.held
	}},
	"a refund was acknowledged with another amount": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		w.told(invariant.Refund).AmountMinor--
	}},
	"a refund that nobody asked for": {line: invariant.NobodyAskedFor, before: func(t *testing.T, w *world) {
		w.refund(t, w.captured, 1)
	}},
	"every attempt was cut off, and less was captured": {line: invariant.NobodyAskedFor, before: func(t *testing.T, w *world) {
		x := cutOff(w.capture(t, w.held, 5)[0])
		x.AmountMinor = 6
		w.history = append(w.history, x)
	}},
	"a payment that nobody asked for": {line: invariant.NobodyAskedFor, before: func(t *testing.T, w *world) {
		w.pay(t, w.a, w.b, 1)
	}},
	"every attempt was cut off, and the payment is of another amount to another account": {line: invariant.NobodyAskedFor, before: func(t *testing.T, w *world) {
		x := cutOff(w.pay(t, w.a, w.b, 5)[0])
		x.AmountMinor, x.DestinationAccount = 500, uuid.New()
		w.history = append(w.history, x)
	}},
	"the payment was refused, since its key had been used, and was made": {line: invariant.NobodyAskedFor, before: func(t *testing.T, w *world) {
		x := cutOff(w.pay(t, w.a, w.b, 5)[0])
		other := x
		other.Request, other.AmountMinor = digest("other"), x.AmountMinor+1
		x.Status, x.Code, x.Answer = 422, "idempotency-key-reused", digest("refused")
		w.history = append(w.history, x, other)
	}},
	"a repeat got another answer": {line: invariant.AnswersChanged, after: func(_ *testing.T, w *world) {
		x := w.history[0]
		x.Answer, x.Replayed = digest("another"), true
		w.history = append(w.history, x)
	}},
	"a repeat of a refusal got another status": {line: invariant.AnswersChanged, after: func(_ *testing.T, w *world) {
		i := slices.IndexFunc(w.history, func(x invariant.Exchange) bool { return x.Code == "unknown-account" })
		x := w.history[i]
		x.Status, x.Replayed = 404, true
		w.history = append(w.history, x)
	}},
	"a stored answer is not the one that was given": {line: invariant.AnswersChanged, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE idempotency_keys SET body = body || ' '::bytea WHERE key = $1`, w.history[0].Key)
	}},
	"a reused key was answered": {line: invariant.ReusedKeysAccepted, after: func(_ *testing.T, w *world) {
		x := w.history[0]
		x.Request, x.AmountMinor = digest("other"), x.AmountMinor+1
		w.history = append(w.history, x)
	}},
	"a new key was refused as used": {line: invariant.RefusedForNothing, after: func(_ *testing.T, w *world) {
		x := cutOff(w.history[0])
		x.Key, x.Status, x.Code, x.Answer = "fresh", 422, "idempotency-key-reused", digest("refused")
		w.history = append(w.history, x)
	}},
	"a request was answered and then refused as another one": {line: invariant.RefusedForNothing, after: func(_ *testing.T, w *world) {
		x := w.history[0]
		x.Status, x.Code, x.Answer, x.Replayed = 422, "idempotency-key-reused", digest("refused"), false
		w.history = append(w.history, x)
	}},
	"a repeat was answered as if it were the first": {line: invariant.RepeatsUnmarked, after: func(_ *testing.T, w *world) {
		i := slices.IndexFunc(w.history, func(x invariant.Exchange) bool { return x.Replayed })
		w.history[i].Replayed = false
	}},
	"a key paid twice": {line: invariant.KeysTwice, before: func(t *testing.T, w *world) {
		again := w.pay(t, w.a, w.b, w.history[4].AmountMinor)[0]
		w.exec(t, `UPDATE payments SET idempotency_key = $1 WHERE idempotency_key = $2`, w.history[4].Key, again.Key)
		w.exec(t, `DELETE FROM idempotency_keys WHERE key = $1`, again.Key)
	}},
	"a key paid and refunded": {line: invariant.KeysTwice, before: func(t *testing.T, w *world) {
		paid, refund := w.history[4], w.refund(t, w.captured, 1)[0]
		w.exec(t, `UPDATE payment_commands SET idempotency_key = $1, method = 'CLI' WHERE idempotency_key = $2`, paid.Key, refund.Key)
		w.exec(t, `DELETE FROM idempotency_keys WHERE key = $1`, refund.Key)
	}},
	"a key was answered twice, before midnight and after": {line: invariant.KeysTwice, after: func(t *testing.T, w *world) {
		w.exec(t, `INSERT INTO idempotency_keys SELECT tenant_id, client_id, key, key_hash, day - 1, fingerprint, fingerprint_version, request_id,
			created_at - interval '23 hours', status, content_type, location, body FROM idempotency_keys WHERE location LIKE '%/accounts/%' LIMIT 1`)
	}},
	"a payment has no stored answer": {line: invariant.AnswersMissing, after: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM idempotency_keys WHERE key = $1`, w.history[0].Key)
	}},
	"a client was told no, and the payment was made": {line: invariant.AnswersMissing, before: func(t *testing.T, w *world) {
		paid := w.pay(t, w.a, w.b, 777)[0]
		refused := w.history[slices.IndexFunc(w.history, func(x invariant.Exchange) bool { return x.Code == "unknown-account" })]
		for i := range w.history {
			if w.history[i].Key == refused.Key {
				w.history[i].AmountMinor, w.history[i].DestinationAccount = paid.AmountMinor, paid.DestinationAccount
			}
		}
		w.exec(t, `DELETE FROM idempotency_keys WHERE key = $1`, paid.Key)
		w.exec(t, `UPDATE payments SET idempotency_key = $1 WHERE idempotency_key = $2`, refused.Key, paid.Key)
	}},
	"a payment's key has the answer that an account was opened": {line: invariant.AnswersMissing, before: func(t *testing.T, w *world) {
		paid := w.pay(t, w.a, w.b, 777)[0]
		w.history = append(w.history, cutOff(paid))
		w.exec(t, `UPDATE idempotency_keys k SET body = o.body, location = o.location FROM idempotency_keys o WHERE k.key = $1 AND o.location LIKE '%/accounts/%'`, paid.Key)
	}},
	"an answer tells of a payment that is not there": {line: invariant.AnswersMissing, after: func(t *testing.T, w *world) {
		w.exec(t, `INSERT INTO idempotency_keys SELECT tenant_id, client_id, 'invented', substr(sha256('invented'), 1, 16), day, fingerprint, fingerprint_version, request_id,
			created_at, status, content_type, location, body FROM idempotency_keys WHERE key = $1`, w.history[0].Key)
	}},
	"a capture has no stored answer": {line: invariant.AnswersMissing, after: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM idempotency_keys WHERE key = $1`, w.told(invariant.Capture).Key)
	}},
	"nobody is known to have canceled a payment": {line: invariant.AnswersMissing, before: func(t *testing.T, w *world) {
		w.history = slices.DeleteFunc(w.history, func(x invariant.Exchange) bool { return x.PaymentID == w.canceled })
		w.exec(t, `DELETE FROM idempotency_keys k USING payment_commands c WHERE k.key = c.idempotency_key AND c.payment_id = $1`, w.canceled)
		w.exec(t, `DELETE FROM payment_commands WHERE payment_id = $1`, w.canceled)
	}},
	"a refund's answer tells of another payment": {line: invariant.AnswersMissing, after: func(t *testing.T, w *world) {
		refund := w.told(invariant.Refund)
		body := []byte(`{"source_account":""}`)
		w.exec(t, `UPDATE idempotency_keys SET body = $1 WHERE key = $2`, body, refund.Key)
		for i, x := range w.history {
			if x.Key == refund.Key {
				w.history[i].Answer = digest(string(body))
			}
		}
	}},
	"a refund has no event": {line: invariant.EventsMissing, between: func(t *testing.T, w *world) {
		const other = `{"id":"another"}`
		w.exec(t, `UPDATE outbox_events SET payload = $1 WHERE event_type = 'refund.declined' AND aggregate_id = $2`, []byte(other), w.refunded.String())
		w.message("refund.declined").Payload = []byte(other)
	}},
	"an event tells of a refund that is not there": {line: invariant.EventsMissing, before: func(t *testing.T, w *world) {
		i := slices.IndexFunc(w.history, func(x invariant.Exchange) bool { return x.Command == invariant.Refund && x.Status == 402 })
		key := w.history[i].Key
		w.history = slices.DeleteFunc(w.history, func(x invariant.Exchange) bool { return x.Key == key })
		w.exec(t, `DELETE FROM refunds WHERE status = 'declined' AND payment_id = $1`, w.refunded)
		w.exec(t, `UPDATE payment_commands SET method = 'CLI' WHERE idempotency_key = $1`, key)
		w.exec(t, `UPDATE idempotency_keys SET status = 200 WHERE key = $1`, key)
	}},
	"the last event is not the payment's status": {line: invariant.EventsMissing, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE payments SET status = 'expired' WHERE id = $1`, w.canceled)
		w.history = slices.DeleteFunc(w.history, func(x invariant.Exchange) bool { return x.PaymentID == w.canceled })
		w.exec(t, `UPDATE payment_commands SET method = 'CLI' WHERE payment_id = $1`, w.canceled)
	}},
	"a payment was captured and then expired": {line: invariant.TransitionsIllegal, between: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET event_type = 'payment.expired' WHERE aggregate_id = $1 AND aggregate_version = 2`, w.refunded.String())
		i := slices.IndexFunc(w.messages, func(m relay.Message) bool { return m.AggregateID == w.refunded.String() && *m.AggregateVersion == 2 })
		w.messages[i].Type = "payment.expired"
	}},
	"a payment begins with its end": {line: invariant.TransitionsIllegal, between: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET event_type = 'payment.canceled' WHERE aggregate_id = $1 AND aggregate_version = 1`, w.held.String())
		w.exec(t, `UPDATE payments SET status = 'canceled', authorization_ended_at = now() WHERE id = $1`, w.held)
		w.exec(t, `UPDATE accounts SET held_minor = 0 WHERE id = $1`, w.a)
		i := slices.IndexFunc(w.messages, func(m relay.Message) bool { return m.AggregateID == w.held.String() })
		w.messages[i].Type = "payment.canceled"
	}},
	"a payment has no event": {line: invariant.EventsMissing, before: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM outbox_events WHERE event_type = 'payment.declined'`)
	}},
	"an account has no event": {line: invariant.EventsMissing, before: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM outbox_events WHERE aggregate_id = $1`, w.a.String())
	}},
	"an event says completed of a payment that was declined": {line: invariant.EventsMissing, between: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET event_type = 'payment.completed' WHERE event_type = 'payment.declined' AND aggregate_version = 1`)
		w.message("payment.declined").Type = "payment.completed"
	}},
	"an event tells of a payment that is not there": {line: invariant.EventsMissing, before: func(t *testing.T, w *world) {
		w.append(t, outbox.Event{ID: uuid.New(), AggregateType: "payments", AggregateID: uuid.NewString(), AggregateVersion: 1, Type: payments.PaymentDeclined, Payload: []byte("{}")})
	}},
	"an event was never sent": {line: invariant.EventsLost, between: func(_ *testing.T, w *world) {
		w.messages = slices.DeleteFunc(w.messages, func(m relay.Message) bool { return m.AggregateType == "orders" && *m.AggregateVersion == 3 })
	}},
	"an event of a payment was sent that never committed": {line: invariant.EventsPhantom, between: func(_ *testing.T, w *world) {
		m := *w.message("order.changed")
		m.EventID, m.AggregateID = uuid.New(), "8"
		w.messages = append(w.messages, m)
	}},
	"a record has no id": {line: invariant.EventsPhantom, after: func(t *testing.T, w *world) {
		w.produce(t, &kgo.Record{Topic: w.prefix + "orders", Key: []byte("8"), Value: []byte("{}")})
	}},
	"a payload was changed on the way": {line: invariant.EventsChanged, between: func(_ *testing.T, w *world) {
		w.message("order.changed").Payload = []byte(`{"order": 7}`)
	}},
	"a type was changed on the way": {line: invariant.EventsChanged, between: func(_ *testing.T, w *world) {
		w.message("order.changed").Type = "order.deleted"
	}},
	"a key was changed on the way": {line: invariant.EventsChanged, between: func(_ *testing.T, w *world) {
		w.message("payment.declined").AggregateID = uuid.NewString()
	}},
	"a version was lost on the way": {line: invariant.EventsChanged, between: func(_ *testing.T, w *world) {
		w.message("payment.declined").AggregateVersion = nil
	}},
	"a tenant was changed on the way": {line: invariant.EventsChanged, between: func(_ *testing.T, w *world) {
		w.message("payment.declined").Headers = []byte(`{"ce_tenantid": "another"}`)
	}},
	"an event was sent twice": {line: invariant.EventsRepeated, between: func(_ *testing.T, w *world) {
		w.messages = append(w.messages, *w.message("order.changed"))
	}},
	"a capture was sent before its authorization": {line: invariant.EventsOutOfOrder, between: func(_ *testing.T, w *world) {
		of := func(version int64) int {
			return slices.IndexFunc(w.messages, func(m relay.Message) bool {
				return m.AggregateID == w.captured.String() && *m.AggregateVersion == version
			})
		}
		i, j := of(1), of(2)
		w.messages[i], w.messages[j] = w.messages[j], w.messages[i]
	}},
	"events were sent in another order": {line: invariant.EventsOutOfOrder, between: func(_ *testing.T, w *world) {
		n := len(w.messages)
		w.messages[n-1], w.messages[n-2] = w.messages[n-2], w.messages[n-1]
	}},
	"an aggregate is in two partitions": {line: invariant.EventsOutOfOrder, between: func(_ *testing.T, w *world) {
		n := len(w.messages)
		w.kept, w.messages = &w.messages[n-1], w.messages[:n-1]
	}, after: func(t *testing.T, w *world) {
		w.produce(t, &kgo.Record{Partition: (w.usedPartition(t, "orders") + 1) % 12, Topic: w.prefix + "orders", Key: []byte("7"),
			Value: w.kept.Payload, Headers: headersOf(w.kept)})
	}},
	"a version was left out": {line: invariant.EventsOutOfOrder, before: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET aggregate_version = 4 WHERE aggregate_type = 'orders' AND aggregate_version = 3`)
	}},
	"an effect was lost": {line: invariant.EffectsLost, after: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM inbox_events WHERE event_id = $1`, w.message("payment.declined").EventID)
	}},
	"an effect has no event": {line: invariant.EffectsPhantom, after: func(t *testing.T, w *world) {
		w.exec(t, `INSERT INTO inbox_events (consumer, event_id, event_day) VALUES ($1, $2, now()::date)`, statements.Consumer, uuid.New())
	}},
	"an effect was another consumer's": {line: invariant.EffectsLost, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE inbox_events SET consumer = 'another' WHERE event_id = $1`, w.message("payment.declined").EventID)
	}},
	"an effect was doubled": {line: invariant.StatementsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE statements SET payment_count = payment_count + 1, credits_minor = credits_minor + 5 WHERE account_id = $1`, w.a)
	}},
	"an effect was forgotten": {line: invariant.StatementsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM statements WHERE account_id = $1`, w.a)
	}},
	"two payments have each other's entries": {line: invariant.PaymentsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries e SET payment_id = x.payment_id FROM ledger_entries x
			WHERE x.account_id = e.account_id AND e.account_id = $1 AND (e.entry_no, x.entry_no) IN ((2, 4), (4, 2))`, w.a)
	}},
	"entries of a payment that is not there": {line: invariant.PaymentsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries SET payment_id = $1 WHERE payment_id = (SELECT payment_id FROM ledger_entries LIMIT 1)`, uuid.New())
	}},
	"more was captured than the payment says": {line: invariant.PaymentsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE payments SET released_minor = released_minor + 1 WHERE id = $1`, w.captured)
		w.history = slices.DeleteFunc(w.history, func(x invariant.Exchange) bool { return x.PaymentID == w.captured })
		w.exec(t, `UPDATE payment_commands SET method = 'CLI' WHERE payment_id = $1`, w.captured)
	}},
	"a canceled payment has entries": {line: invariant.PaymentsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries SET payment_id = $1 WHERE payment_id = $2 AND refund_id IS NULL`, w.canceled, w.captured)
	}},
	"a refund's entries belong to its payment": {line: invariant.RefundsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries e SET payment_id = $1 FROM refunds r WHERE e.refund_id = r.id`, w.captured)
	}},
	"a payment was refunded more than its refunds say": {line: invariant.RefundsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE payments SET refunded_minor = 1 WHERE id = $1`, w.captured)
	}},
	"a refund went the wrong way": {line: invariant.RefundsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE refunds SET source_account = destination_account, destination_account = source_account WHERE status = 'declined'`)
	}},
	"an event names another tenant": {line: invariant.PaymentsAstray, before: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET headers = headers - 'ce_tenantid' WHERE event_type = 'refund.declined'`)
	}},
	"a payment went to another tenant": {line: invariant.PaymentsAstray, before: func(t *testing.T, w *world) {
		// Its events went there, too: they alone would show it.
		other := uuid.New()
		w.exec(t, `UPDATE accounts SET tenant_id = $1 WHERE id = $2`, other, w.b)
		w.exec(t, `UPDATE ledger_entries SET tenant_id = $1 WHERE account_id = $2`, other, w.b)
		w.exec(t, `UPDATE outbox_events SET tenant_id = $1::uuid, headers = jsonb_set(headers, '{ce_tenantid}', to_jsonb($1::text))
			WHERE aggregate_type = 'accounts' AND aggregate_id = $2::text`, other.String(), w.b.String())
	}},
	"an event belongs to another tenant than it says": {line: invariant.PaymentsAstray, before: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET tenant_id = NULL WHERE event_type = 'refund.declined'`)
	}},
	"an account's event belongs to another tenant than it says": {line: invariant.PaymentsAstray, before: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET tenant_id = event_id WHERE aggregate_type = 'accounts' AND aggregate_id = $1::text`, w.b.String())
	}},
	"an entry is another tenant's": {line: invariant.PaymentsAstray, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries SET tenant_id = id WHERE account_id = $1 AND entry_no = 1`, w.b)
	}},
	"a balance is off by one": {line: invariant.BalancesWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE accounts SET balance_minor = balance_minor + 1 WHERE id = $1`, w.b)
	}},
	"a number of entries is off by one": {line: invariant.BalancesWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE accounts SET entry_count = entry_count + 1 WHERE id = $1`, w.b)
	}},
	"a balance on the way is wrong": {line: invariant.BalancesWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries SET balance_after_minor = balance_after_minor + 1 WHERE account_id = $1 AND entry_no = 3`, w.b)
	}},
	"entries have a gap": {line: invariant.BalancesWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries SET entry_no = 999 WHERE account_id = $1 AND entry_no = (SELECT entry_count FROM accounts WHERE id = $1)`, w.b)
	}},
	"a customer was below zero in between": {line: invariant.BalancesWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE ledger_entries e SET payment_id = x.payment_id, amount_minor = x.amount_minor,
				balance_after_minor = CASE e.entry_no WHEN 1 THEN x.amount_minor ELSE e.balance_after_minor END
			FROM ledger_entries x WHERE x.account_id = e.account_id AND e.account_id = $1 AND (e.entry_no, x.entry_no) IN ((1, 2), (2, 1))`, w.a)
	}},
	"a hold was kept": {line: invariant.HoldsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE accounts SET held_minor = held_minor + 60 WHERE id = $1`, w.a)
	}},
	"a hold was forgotten": {line: invariant.HoldsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE accounts SET held_minor = 0 WHERE id = $1`, w.a)
	}},
	"a reservation was forgotten": {line: invariant.HoldsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE accounts SET held_minor = 0 WHERE id = $1`, w.b)
	}},
	"a card payment was acknowledged with another amount": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		w.told(invariant.Charge).AmountMinor++
	}},
	"a payment by card was acknowledged as one between accounts": {line: invariant.AcknowledgedMissing, after: func(_ *testing.T, w *world) {
		x := w.told(invariant.Charge)
		x.Command, x.SourceAccount = invariant.Pay, w.clearing
	}},
	"a card payment that was declined later was refused": {line: invariant.AnswersMissing, after: func(t *testing.T, w *world) {
		w.history = slices.DeleteFunc(w.history, func(x invariant.Exchange) bool { return x.Command == invariant.Charge && x.AmountMinor == 2000 })
		w.exec(t, `UPDATE idempotency_keys k SET status = 402 FROM payments p WHERE p.id = $1 AND k.key = p.idempotency_key`, w.declinedCard)
		w.exec(t, `UPDATE payments SET method = 'CLI' WHERE id = $1`, w.declinedCard)
	}},
	"a client was told that its card was charged before it was": {line: invariant.AnswersMissing, before: func(t *testing.T, w *world) {
		w.rewrite(t, invariant.Charge, 1000, `"processing"`, `"completed"`)
	}},
	"a client was told that its card got money back before it did": {line: invariant.AnswersMissing, before: func(t *testing.T, w *world) {
		w.rewrite(t, invariant.Refund, 100, `"processing"`, `"completed"`)
	}},
	"a payment by card ended twice": {line: invariant.TransitionsIllegal, between: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE outbox_events SET event_type = 'payment.failed' WHERE aggregate_id = $1 AND aggregate_version = 1`, w.declinedCard.String())
		i := slices.IndexFunc(w.messages, func(m relay.Message) bool { return m.AggregateID == w.declinedCard.String() })
		w.messages[i].Type = "payment.failed"
	}},
	"a refund by card has no event of its end": {line: invariant.EventsMissing, between: func(t *testing.T, w *world) {
		const other = `{"id":"another"}`
		w.exec(t, `UPDATE outbox_events SET payload = $1 WHERE event_type = 'refund.failed'`, []byte(other))
		w.message("refund.failed").Payload = []byte(other)
	}},
	"a payment knows nothing of a refund that is processing": {line: invariant.RefundsUnbalanced, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE payments SET refunding_minor = 0 WHERE id = $1`, w.charged)
	}},
	"a payment by card has no operation": {line: invariant.OperationsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM psp_operations WHERE payment_id = $1`, w.waiting)
	}},
	"a refund by card has no operation": {line: invariant.OperationsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `DELETE FROM psp_operations WHERE kind = 'refund' AND state = 'pending'`)
	}},
	"an operation ended and its payment did not": {line: invariant.OperationsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE psp_operations SET state = 'declined', code = 'x', ended_at = now() WHERE payment_id = $1`, w.waiting)
	}},
	"an operation is of another amount than its refund": {line: invariant.OperationsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `UPDATE psp_operations SET amount_minor = amount_minor + 1 WHERE kind = 'refund' AND state = 'pending'`)
	}},
	"an operation belongs to no card": {line: invariant.OperationsWrong, after: func(t *testing.T, w *world) {
		w.exec(t, `INSERT INTO psp_operations (id, tenant_id, payment_id, kind, amount_minor, currency, created_at)
			SELECT $2, tenant_id, id, 'charge', amount_minor, currency, now() FROM payments WHERE id = $1`, w.captured, uuid.New())
	}},
	"a card pays out of a customer's account": {line: invariant.OperationsWrong, after: func(t *testing.T, w *world) {
		if _, err := w.db.Exec(t.Context(), `DROP INDEX accounts_one_system`); err != nil {
			t.Fatal(err)
		}
		w.exec(t, `UPDATE accounts SET kind = 'system' WHERE id = $1`, w.clearing)
	}},
	"a card was charged twice": {line: invariant.ChargedTwice, after: func(_ *testing.T, w *world) {
		again := w.psp[0]
		again.Reference = "charge_again"
		w.psp = append(w.psp, again)
	}},
	"money went back twice": {line: invariant.ChargedTwice, after: func(_ *testing.T, w *world) {
		i := slices.IndexFunc(w.psp, func(e invariant.PSPEntry) bool { return e.Kind == "refund" && !e.Declined })
		again := w.psp[i]
		again.Reference = "refund_again"
		w.psp = append(w.psp, again)
	}},
	"a card was charged for a payment that was declined": {line: invariant.ChargedUnbooked, after: func(_ *testing.T, w *world) {
		i := slices.IndexFunc(w.psp, func(e invariant.PSPEntry) bool { return e.Declined })
		w.psp[i].Declined = false
	}},
	"a card was charged for nothing that we know": {line: invariant.ChargedUnbooked, after: func(_ *testing.T, w *world) {
		w.psp = append(w.psp, invariant.PSPEntry{Kind: "charge", Reference: "charge_by_hand", AmountMinor: 1, Currency: "USD"})
	}},
	"a payment completed that the PSP has not": {line: invariant.BookedUncharged, after: func(_ *testing.T, w *world) {
		w.psp = w.psp[1:]
	}},
	"a refund completed that the PSP declined": {line: invariant.BookedUncharged, after: func(_ *testing.T, w *world) {
		i := slices.IndexFunc(w.psp, func(e invariant.PSPEntry) bool { return e.Kind == "refund" && !e.Declined })
		w.psp[i].Declined = true
	}},
	"the PSP charged another amount": {line: invariant.PSPDiffers, after: func(_ *testing.T, w *world) {
		w.psp[0].AmountMinor++
	}},
	"the PSP charged another currency": {line: invariant.PSPDiffers, after: func(_ *testing.T, w *world) {
		w.psp[0].Currency = "EUR"
	}},
	"the PSP gave back another charge": {line: invariant.PSPDiffers, after: func(_ *testing.T, w *world) {
		i := slices.IndexFunc(w.psp, func(e invariant.PSPEntry) bool { return e.Kind == "refund" && !e.Declined })
		w.psp[i].ChargeReference = "charge_other"
	}},
	"a customer was below zero": {line: invariant.BalancesWrong, after: func(t *testing.T, w *world) {
		if _, err := w.db.Exec(t.Context(), `ALTER TABLE accounts
			DROP CONSTRAINT accounts_customer_not_negative, DROP CONSTRAINT accounts_customer_available`); err != nil {
			t.Fatal(err)
		}
		w.exec(t, `UPDATE accounts SET kind = 'customer' WHERE id = $1`, w.system)
	}},
}

func TestEachDefectTurnsItsLineRedAndNoOther(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for name, d := range defects {
		seen[d.line] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if d.before != nil {
				d.before(t, w)
			}
			w.load(t)
			w.consume(t)
			if d.between != nil {
				d.between(t, w)
			}
			w.publish(t)
			if d.after != nil {
				d.after(t, w)
			}
			wantWrong(t, w.check(t), d.line)
		})
	}
	if len(seen) != 28 {
		t.Errorf("defects for %d lines: %v", len(seen), seen)
	}
}

// message is the first of a type.
func (w *world) message(kind string) *relay.Message {
	i := slices.IndexFunc(w.messages, func(m relay.Message) bool { return m.Type == kind })
	return &w.messages[i]
}

// cutOff is an attempt whose answer did not come.
func cutOff(x invariant.Exchange) invariant.Exchange {
	x.Status, x.Code, x.Answer, x.Replayed = 0, "", "", false
	return x
}

// rewrite changes the stored answer of a command of that amount, and what the client was told.
func (w *world) rewrite(t *testing.T, c invariant.Command, amount int64, from, to string) {
	t.Helper()
	i := slices.IndexFunc(w.history, func(x invariant.Exchange) bool { return x.Command == c && x.AmountMinor == amount && x.Status == 201 })
	key := w.history[i].Key
	w.exec(t, `UPDATE idempotency_keys SET body = convert_to(replace(convert_from(body, 'UTF8'), $2, $3), 'UTF8') WHERE key = $1`, key, from, to)
	var body []byte
	if err := w.db.QueryRow(t.Context(), `SELECT body FROM idempotency_keys WHERE key = $1`, key).Scan(&body); err != nil {
		t.Fatal(err)
	}
	for i := range w.history {
		if w.history[i].Key == key {
			w.history[i].Answer = digest(string(body))
		}
	}
}

// told is the first acknowledgement of a command.
func (w *world) told(c invariant.Command) *invariant.Exchange {
	i := slices.IndexFunc(w.history, func(x invariant.Exchange) bool { return x.Command == c && x.Status/100 == 2 })
	return &w.history[i]
}

func (w *world) declined() invariant.Exchange {
	i := slices.IndexFunc(w.history, func(x invariant.Exchange) bool { return x.Status == 402 })
	return w.history[i]
}

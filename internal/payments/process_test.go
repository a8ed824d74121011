package payments_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// late is a database whose transactions are a while old when their work begins.
type late struct{ idempotency.Beginner }

func (l late) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := l.Beginner.BeginTx(ctx, o)
	if err == nil {
		_, err = tx.Exec(ctx, `SELECT pg_sleep(0.02)`)
	}
	return tx, err
}

// now() is when the transaction began. Any other clock, the API's too, is 20 ms ahead.
func TestTimesAreTheClaims(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	b.DB = late{b.DB}
	from := b.customer(t, 10)
	b.process(t, b.pay(from, b.customer(t, 0), 1), b.pay(from, b.system, 1_000))

	for what, sql := range map[string]string{
		"payments": `SELECT count(*) FILTER (WHERE p.processed_at = date_trunc('milliseconds', k.created_at)), count(*)
			FROM payments p JOIN idempotency_keys k ON k.key = p.idempotency_key`,
		"entries": `SELECT count(*) FILTER (WHERE e.created_at = p.processed_at), count(*) FROM ledger_entries e JOIN payments p ON p.id = e.payment_id`,
		"accounts": `SELECT count(*) FILTER (WHERE a.created_at = date_trunc('milliseconds', k.created_at)), count(*)
			FROM accounts a JOIN idempotency_keys k ON convert_from(k.body, 'utf8')::jsonb ->> 'id' = a.id::text WHERE a.kind = 'customer'`,
	} {
		var right, all int
		if err := b.owner.QueryRow(t.Context(), sql).Scan(&right, &all); err != nil || right != all || all == 0 {
			t.Errorf("%s: %d of %d have the time of their claim: %v", what, right, all, err)
		}
	}
}

func TestPaymentWritesEntriesEventAndAnswer(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	from, to := b.customer(t, 1000), b.customer(t, 0)
	r := b.pay(from, to, 250)
	c := r.Command.(payments.CreatePayment)
	c.Description, c.ClientReference, c.Metadata = "déjà vu \"'<>&", "ref", map[string]string{"b": "1", "a": "<2>"}
	r.Command = c
	first := b.process(t, r)[0]
	wantStatus(t, first, 201)
	paid := decode[payments.Payment](t, first)
	want := payments.Payment{
		ID: paid.ID, Status: payments.Completed, AmountMinor: 250, CapturedMinor: 250, Currency: "USD",
		SourceAccount: from, DestinationAccount: to,
		Description: c.Description, Metadata: c.Metadata, ClientReference: "ref", ProcessedAt: paid.ProcessedAt, Version: 1,
	}
	if diff := cmp.Diff(want, paid); diff != "" {
		t.Error(diff)
	}
	if b.balance(t, from) != 750 || b.balance(t, to) != 250 {
		t.Errorf("balances %d and %d", b.balance(t, from), b.balance(t, to))
	}
	var payload, headers, metadata []byte
	var method, route, requestID string
	err := b.owner.QueryRow(t.Context(), `SELECT o.payload, o.headers, p.metadata, p.method, p.route, p.request_id
		FROM payments p JOIN outbox_events o ON o.aggregate_id = p.id::text WHERE p.id = $1 AND p.processed_at = $2`, paid.ID, paid.ProcessedAt).
		Scan(&payload, &headers, &metadata, &method, &route, &requestID)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(payload, first.Response.Body) {
		t.Errorf("the event says %s, the answer %s", payload, first.Response.Body)
	}
	var stored, sent map[string]string
	_, _ = json.Unmarshal(metadata, &stored), json.Unmarshal(headers, &sent)
	wantHeaders := map[string]string{"traceparent": r.Headers["traceparent"], "ce_tenantid": b.tenant.String()}
	if diff := cmp.Diff([]any{c.Metadata, wantHeaders, "POST", "/x", r.RequestID}, []any{stored, sent, method, route, requestID}); diff != "" {
		t.Error(diff)
	}
	repeat := r
	repeat.RequestID = uuid.NewString()
	first.State = idempotency.Replay
	if diff := cmp.Diff(first, b.process(t, repeat)[0]); diff != "" {
		t.Error(diff)
	}
	b.wantBalanced(t)
}

func TestRefusalStoresOnlyItsAnswer(t *testing.T) {
	t.Parallel()
	b, stranger := newBank(t, nil), uuid.New()
	usd, euro := b.customer(t, 1000), b.open(t, payments.Customer, "EUR")
	tenant := b.tenant
	b.tenant = stranger
	foreign := b.open(t, payments.Customer, "USD")
	b.tenant = tenant
	full := b.customer(t, 0)
	if _, err := b.owner.Exec(t.Context(), `UPDATE accounts SET balance_minor = $2 WHERE id = $1`, full, int64(math.MaxInt64)); err != nil {
		t.Fatal(err)
	}
	fund := b.pay(b.system, usd, 1)
	c := fund.Command.(payments.CreatePayment)
	c.MayFund = false
	fund.Command = c
	unknown := uuid.New()
	for name, refused := range map[string]struct {
		r    payments.Request
		want payments.Refusal
	}{
		"unknown source":                     {b.pay(unknown, usd, 1), payments.Refusal{Code: payments.UnknownAccount, Account: unknown}},
		"unknown destination":                {b.pay(usd, unknown, 1), payments.Refusal{Code: payments.UnknownAccount, Account: unknown}},
		"another tenant's source":            {b.pay(foreign, usd, 1), payments.Refusal{Code: payments.UnknownAccount, Account: foreign}},
		"another tenant's destination":       {b.pay(usd, foreign, 1), payments.Refusal{Code: payments.UnknownAccount, Account: foreign}},
		"destination in another currency":    {b.pay(usd, euro, 1), payments.Refusal{Code: payments.CurrencyMismatch, Account: euro}},
		"source in another currency":         {b.pay(euro, usd, 1), payments.Refusal{Code: payments.CurrencyMismatch, Account: euro}},
		"system account without the scope":   {fund, payments.Refusal{Code: payments.FundingForbidden, Account: b.system}},
		"a balance beyond its range":         {b.pay(usd, full, 1), payments.Refusal{Code: payments.AmountOutOfRange, Account: full}},
		"a second system account":            {b.request(payments.CreateAccount{Kind: payments.System, Currency: "USD"}), payments.Refusal{Code: payments.SystemExists}},
		"a second system account, and named": {b.request(payments.CreateAccount{Kind: payments.System, Currency: "USD", Name: "x"}), payments.Refusal{Code: payments.SystemExists}},
	} {
		rows := func() []int64 {
			var n []int64
			for _, table := range []string{"accounts", "payments", "ledger_entries", "outbox_events", "idempotency_keys"} {
				n = append(n, count(t, b.owner, `SELECT count(*) FROM `+table))
			}
			return n
		}
		want := rows()
		want[4]++
		for _, state := range []idempotency.State{idempotency.New, idempotency.Replay} {
			a := b.process(t, refused.r)[0]
			wantStatus(t, a, 422)
			if got := decode[payments.Refusal](t, a); got != refused.want || a.State != state {
				t.Errorf("%s: %s %+v", name, a.State, got)
			}
		}
		if diff := cmp.Diff(want, rows()); diff != "" {
			t.Errorf("%s: rows of accounts, payments, entries, events, keys: %s", name, diff)
		}
	}
	if b.balance(t, usd) != 1000 || b.balance(t, foreign) != 0 {
		t.Error("money moved")
	}
}

func TestDeclinedPaymentMovesNothing(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	from, to := b.customer(t, 99), b.customer(t, 0)
	a := b.process(t, b.pay(from, to, 100))[0]
	wantStatus(t, a, 402)
	declined := decode[payments.Payment](t, a)
	if declined.Status != payments.Declined || declined.DeclineCode != payments.InsufficientFunds {
		t.Errorf("%+v", declined)
	}
	if n := count(t, b.owner, `SELECT count(*) FROM outbox_events WHERE aggregate_id = $1 AND event_type = 'payment.declined'`, declined.ID.String()); n != 1 {
		t.Errorf("%d events", n)
	}
	if b.balance(t, from) != 99 || b.balance(t, to) != 0 {
		t.Error("money moved")
	}
	b.wantBalanced(t)
}

func TestBatchRunsInOrder(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	one, two, three := b.customer(t, 100), b.customer(t, 0), b.customer(t, 0)
	twice := b.pay(one, three, 1)
	as := b.process(t,
		b.pay(two, three, 50), // two has nothing yet
		b.pay(one, two, 80),
		b.pay(one, three, 80), // money for one of the two only
		b.pay(two, three, 50), // now it has
		b.pay(one, three, 20),
		twice, twice,
		b.request(payments.CreateAccount{Kind: payments.System, Currency: "EUR"}),
		b.request(payments.CreateAccount{Kind: payments.System, Currency: "EUR"}),
	)
	var got []int
	for _, a := range as {
		got = append(got, a.Response.Status)
	}
	if diff := cmp.Diff([]int{402, 201, 402, 201, 201, 402, 0, 201, 422}, got); diff != "" {
		t.Error(diff)
	}
	if as[6].State != idempotency.InProgress {
		t.Errorf("the second of two equal keys is %s", as[6].State)
	}
	if diff := cmp.Diff([]int64{0, 30, 70}, []int64{b.balance(t, one), b.balance(t, two), b.balance(t, three)}); diff != "" {
		t.Error(diff)
	}
	b.wantBalanced(t)
}

func TestMoneyStaysWithinTenant(t *testing.T) {
	t.Parallel()
	b := newBank(t, nil)
	mine, other := b.customer(t, 100), &bank{Processor: b.Processor, owner: b.owner, tenant: uuid.New(), client: b.client}
	other.system = other.open(t, payments.System, "USD")
	theirs := other.customer(t, 100)
	as := b.process(t,
		other.pay(other.system, theirs, 5), // both accounts are loaded and locked for the batch
		b.pay(b.system, mine, 5),
		b.pay(theirs, mine, 5),
		b.pay(mine, theirs, 5),
		other.pay(mine, theirs, 5),
	)
	for i, status := range []int{201, 201, 422, 422, 422} {
		wantStatus(t, as[i], status)
	}
	if b.balance(t, mine) != 105 || b.balance(t, theirs) != 105 {
		t.Errorf("balances %d and %d", b.balance(t, mine), b.balance(t, theirs))
	}
	b.wantBalanced(t)
}

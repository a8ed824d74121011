package statements_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/inbox"
	"github.com/oncepay/oncepay/internal/statements"
	"github.com/oncepay/oncepay/internal/testenv"
)

var a, b, c = account(1), account(2), account(3)

func account(n byte) uuid.UUID { return uuid.UUID{15: n, 6: 0x70, 8: 0x80} }

func completed(from, to uuid.UUID, amount int64, at string) inbox.Event {
	id := uuid.New()
	payload := fmt.Sprintf(`{"id":%q,"status":"completed","amount_minor":%d,"currency":"USD","source_account":%q,"destination_account":%q,
		"description":"","metadata":{},"client_reference":"","processed_at":%q}`, id, amount, from, to, at)
	return inbox.Event{ID: uuid.New(), Type: "payment.completed", Subject: id.String(), Payload: []byte(payload)}
}

// captured is a payment of which a part was captured, some time after it was authorized.
func captured(from, to uuid.UUID, amount int64, at string) inbox.Event {
	id := uuid.New()
	payload := fmt.Sprintf(`{"id":%q,"status":"completed","amount_minor":%d,"captured_minor":%d,"currency":"USD","source_account":%q,"destination_account":%q,
		"processed_at":"2026-02-01T00:00:00Z","authorization_expires_at":"2026-05-01T00:00:00Z","authorization_ended_at":%q}`, id, amount+1, amount, from, to, at)
	return inbox.Event{ID: uuid.New(), Type: "payment.completed", Subject: id.String(), Payload: []byte(payload)}
}

// refunded is a refund of which from gives the money back.
func refunded(from, to uuid.UUID, amount int64, at string) inbox.Event {
	payment := uuid.New()
	payload := fmt.Sprintf(`{"id":%q,"payment_id":%q,"status":"completed","amount_minor":%d,"currency":"USD","source_account":%q,"destination_account":%q,
		"reason":"","metadata":{},"processed_at":%q,"payment_version":2}`, uuid.New(), payment, amount, from, to, at)
	return inbox.Event{ID: uuid.New(), Type: "refund.completed", Subject: payment.String(), Payload: []byte(payload)}
}

// settled is an event about what went by card, whose money moved when the PSP's result was recorded.
func settled(e inbox.Event, at string) inbox.Event {
	e.Payload = fmt.Appendf(nil, `%s,"payment_method":{"type":"card"},"settled_at":%q}`, bytes.TrimSuffix(e.Payload, []byte("}")), at)
	return e
}

// statement is a row, with its day as text.
type statement struct {
	Account         uuid.UUID
	Day, Currency   string
	Payments        int64
	Debits, Credits int64
}

func all(t *testing.T, db interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}) []statement {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT account_id, day::text, currency, payment_count, debits_minor, credits_minor FROM statements ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[statement])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func handle(t *testing.T, pool *pgxpool.Pool, events ...inbox.Event) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return statements.Handle(t.Context(), tx, events) })
}

func TestStatementPerAccountAndDay(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "consumer")
	events := []inbox.Event{
		completed(a, b, 100, "2026-03-01T23:59:59.999999Z"),
		completed(b, a, 30, "2026-03-02T00:30:00+01:00"), // still the 1st
		completed(a, c, 5, "2026-03-02T00:00:00Z"),
		captured(c, b, 40, "2026-03-03T10:00:00Z"),
		refunded(b, c, 15, "2026-03-03T11:00:00Z"),
		settled(completed(c, a, 9, "2026-03-03T23:59:59Z"), "2026-03-04T00:00:01Z"),
		settled(refunded(a, c, 4, "2026-03-04T23:59:59Z"), "2026-03-05T00:00:01Z"),
	}
	for _, still := range []string{
		"payment.authorized", "payment.canceled", "payment.expired", "payment.declined", "refund.declined", "account.opened",
		"payment.processing", "payment.failed", "refund.processing", "refund.failed",
	} {
		e := completed(a, b, 1, "")
		e.Type = still
		events = append(events, e)
	}
	if err := handle(t, pool, events...); err != nil {
		t.Fatal(err)
	}
	if err := handle(t, pool, completed(a, c, 7, "2026-03-02T12:00:00Z")); err != nil {
		t.Fatal(err)
	}
	want := []statement{
		{a, "2026-03-01", "USD", 2, 100, 30}, {a, "2026-03-02", "USD", 2, 12, 0},
		{a, "2026-03-04", "USD", 1, 0, 9}, {a, "2026-03-05", "USD", 1, 4, 0},
		{b, "2026-03-01", "USD", 2, 30, 100}, {b, "2026-03-03", "USD", 2, 15, 40},
		{c, "2026-03-02", "USD", 2, 0, 12}, {c, "2026-03-03", "USD", 2, 40, 15},
		{c, "2026-03-04", "USD", 1, 9, 0}, {c, "2026-03-05", "USD", 1, 0, 4},
	}
	if diff := cmp.Diff(want, all(t, pool)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatementsInAnyOrderOfEvents(t *testing.T) {
	t.Parallel()
	pool, now := testenv.Database(t).Pool(t, "consumer"), time.Now()
	if err := inbox.MakeDays(t.Context(), pool, now); err != nil {
		t.Fatal(err)
	}
	events := []inbox.Event{
		completed(a, b, 1, "2026-03-01T10:00:00Z"), completed(b, c, 20, "2026-03-01T11:00:00Z"), captured(c, a, 300, "2026-03-02T10:00:00Z"),
		refunded(a, b, 4000, "2026-03-02T11:00:00Z"), {ID: uuid.New(), Type: "payment.authorized"},
	}
	// take does what an inbox.Consumer does with what one poll brought.
	take := func(tx pgx.Tx, batch []inbox.Event) {
		t.Helper()
		ids, times := make([]uuid.UUID, len(batch)), slices.Repeat([]time.Time{now}, len(batch))
		for i, e := range batch {
			ids[i] = e.ID
		}
		first, err := inbox.OnceEach(t.Context(), tx, statements.Consumer, ids, times)
		if err != nil {
			t.Fatal(err)
		}
		var news []inbox.Event
		for i, e := range batch {
			if first[i] {
				news = append(news, e)
			}
		}
		if err := statements.Handle(t.Context(), tx, news); err != nil {
			t.Fatal(err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2)) // the same every time
	var want []statement
	orders := permutations(len(events))
	if len(orders) != 120 {
		t.Fatalf("%d orders", len(orders))
	}
	for _, order := range orders {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var delivered []inbox.Event
		for i, e := range order {
			delivered = append(delivered, events[e])
			for range random.IntN(3) { // any that came before, again
				delivered = append(delivered, events[order[random.IntN(i+1)]])
			}
		}
		for batch := range slices.Chunk(delivered, 1+random.IntN(len(delivered))) {
			take(tx, batch)
		}
		got := all(t, tx)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("order %v (-want +got):\n%s", order, diff)
		}
	}
	if len(want) != 6 || want[0] != (statement{a, "2026-03-01", "USD", 1, 1, 0}) {
		t.Errorf("statements: %v", want)
	}
}

func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, shorter := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(shorter), i, n-1))
		}
	}
	return all
}

func TestNonsenseIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "consumer")
	const at = "2026-03-01T10:00:00Z"
	changed := func(e inbox.Event, member string, value any) inbox.Event {
		members := map[string]any{}
		if err := json.Unmarshal(e.Payload, &members); err != nil {
			t.Fatal(err)
		}
		members[member] = value
		if value == nil {
			delete(members, member)
		}
		e.Payload, _ = json.Marshal(members) // came from JSON
		return e
	}
	edited := func(member string, value any) inbox.Event { return changed(completed(a, b, 1, at), member, value) }
	with := func(payload string) inbox.Event {
		e := completed(a, b, 1, at)
		e.Payload = []byte(payload)
		return e
	}
	later := completed(a, b, 1, at)
	later.Type = "payment.disputed"
	for name, c := range map[string]struct {
		event inbox.Event
		want  error
	}{
		"no payload":               {with(""), statements.ErrMalformed},
		"null":                     {with("null"), statements.ErrMalformed},
		"a list":                   {with("[]"), statements.ErrMalformed},
		"cut off":                  {with(`{"id":`), statements.ErrMalformed},
		"another payment":          {edited("id", uuid.New()), statements.ErrMalformed},
		"status of a declined one": {edited("status", "declined"), statements.ErrMalformed},
		"no amount":                {edited("amount_minor", nil), statements.ErrMalformed},
		"negative":                 {edited("amount_minor", -1), statements.ErrMalformed},
		"fraction":                 {edited("amount_minor", 1.5), statements.ErrMalformed},
		"text":                     {edited("amount_minor", "1"), statements.ErrMalformed},
		"beyond any amount":        {edited("amount_minor", int64(1e15)+1), statements.ErrMalformed},
		"currency":                 {edited("currency", "usd"), statements.ErrMalformed},
		"no source":                {edited("source_account", nil), statements.ErrMalformed},
		"to itself":                {edited("source_account", b), statements.ErrMalformed},
		"no time":                  {edited("processed_at", nil), statements.ErrMalformed},
		"no such time":             {edited("processed_at", "2026-02-30T10:00:00Z"), statements.ErrMalformed},
		"nothing captured":         {edited("captured_minor", 0), statements.ErrMalformed},
		"more than the amount":     {edited("captured_minor", 2), statements.ErrMalformed},
		"refund of another":        {changed(refunded(a, b, 1, at), "payment_id", uuid.New()), statements.ErrMalformed},
		"refund without an id":     {changed(refunded(a, b, 1, at), "id", nil), statements.ErrMalformed},
		"a declined refund":        {changed(refunded(a, b, 1, at), "status", "declined"), statements.ErrMalformed},
		"a type that came later":   {later, statements.ErrUnknownType},
	} {
		if err := handle(t, pool, completed(a, b, 1, at), c.event); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if rows := all(t, pool); len(rows) != 0 {
		t.Errorf("statements: %v", rows)
	}
}

func TestWhatCannotBeAddedUpIsRefused(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "consumer")
	const at = "2026-03-01T10:00:00Z"
	if err := handle(t, pool, completed(a, b, 1, at)); err != nil {
		t.Fatal(err)
	}
	before := all(t, pool)
	euros := completed(a, c, 1, at)
	euros.Payload = bytes.Replace(euros.Payload, []byte("USD"), []byte("EUR"), 1)
	if err := handle(t, pool, euros); !errors.Is(err, statements.ErrMalformed) {
		t.Errorf("another currency: %v", err)
	}
	if diff := cmp.Diff(before, all(t, pool)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE statements SET debits_minor = 9223372036854775807 WHERE account_id = $1`, a); err != nil {
		t.Fatal(err)
	}
	if err := handle(t, pool, completed(a, b, 1, at)); err == nil {
		t.Error("beyond int64: no error")
	}
}

// While the row of an account is locked, two consumers hold some rows and wait for others: they must
// have taken them in one order, or they end in a deadlock when it is free.
func TestConsumersShareAccounts(t *testing.T) {
	t.Parallel()
	pool := testenv.Database(t).Pool(t, "consumer")
	const consumers, rounds, accounts = 2, 5, 12

	var events []inbox.Event
	for n := byte(1); n < accounts; n++ {
		events = append(events, completed(account(n), account(n+1), 1, "2026-03-01T10:00:00Z"))
	}
	if err := handle(t, pool, events...); err != nil {
		t.Fatal(err)
	}

	for range rounds {
		other, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Rollback(context.Background())
		if _, err := other.Exec(t.Context(), `SELECT FROM statements WHERE account_id = $1 FOR UPDATE`, account(accounts/2)); err != nil {
			t.Fatal(err)
		}

		failed := make(chan error, consumers)
		for range consumers {
			go func() { failed <- handle(t, pool, events...) }()
		}
		testenv.Eventually(t, time.Minute, func() error {
			var waiting int
			err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
			if err == nil && waiting < consumers {
				err = fmt.Errorf("%d wait", waiting)
			}
			return err
		})

		if err := other.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range consumers {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
	}

	var debits, credits, payments int64
	for _, s := range all(t, pool) {
		debits, credits, payments = debits+s.Debits, credits+s.Credits, payments+s.Payments
	}
	if n := int64((1 + consumers*rounds) * (accounts - 1)); debits != n || credits != n || payments != 2*n {
		t.Errorf("debits %d, credits %d, payments %d; want %d, %d, %d", debits, credits, payments, n, n, 2*n)
	}
}

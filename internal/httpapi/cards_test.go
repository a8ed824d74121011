package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

const byCard = `"payment_method":{"type":"card","token":"tok_visa"}`

// clearing opens the clearing account of the caller's tenant, as the operator does.
func (c caller) clearing(t *testing.T) string {
	t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	c.api.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO accounts (id, tenant_id, kind, currency) VALUES ($1, $2, 'clearing', 'USD')`, id, c.tenant)
		return err
	})
	return id
}

// card is the body of a payment by card.
func card(to string, amount int64) string {
	return fmt.Sprintf(`{"amount_minor":%d,"currency":"USD","destination_account":%q,%s}`, amount, to, byCard)
}

// charged asks for a payment by card and returns its path.
func (c caller) charged(t *testing.T, to string, amount int64) string {
	t.Helper()
	return c.post(t, "/api/v1/payments", card(to, amount)).header.Get("Location")
}

func (a *api) processor() *payments.Processor {
	return &payments.Processor{DB: a.write, Retention: idempotency.DefaultRetention, Render: httpapi.Render}
}

// operation is that of the payment or refund at path that the PSP has not ended yet.
func (a *api) operation(t *testing.T, path string) (id uuid.UUID) {
	t.Helper()
	a.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT id FROM psp_operations WHERE $1::uuid IN (payment_id, refund_id) ORDER BY created_at DESC LIMIT 1`, path[strings.LastIndex(path, "/")+1:]).Scan(&id)
	})
	return id
}

// settle records what the worker would.
func (a *api) settle(t *testing.T, path string, state payments.OperationState) {
	t.Helper()
	recorded, err := a.processor().Record(t.Context(), []payments.Result{{OperationID: a.operation(t, path), State: state, Reference: "ref_1"}})
	if err != nil || recorded[0] != payments.Applied {
		t.Fatalf("%v %v", recorded, err)
	}
}

func TestPaymentByCardIsProcessing(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	clearing, shop := c.clearing(t), c.account(t)

	first := c.post(t, "/api/v1/payments", card(shop, 100), "Idempotency-Key", "k")
	p := read[payments.Payment](t, first, http.StatusCreated)
	if p.Status != payments.Processing || p.SourceAccount.String() != clearing || p.CapturedMinor != 0 || p.Version != 1 ||
		!strings.Contains(first.body, `"payment_method":{"type":"card"}`) || strings.Contains(first.body, "tok_visa") || strings.Contains(first.body, "settled_at") {
		t.Errorf("%s", first.body)
	}
	path := first.header.Get("Location")
	if got := c.get(t, path); got.body != strings.TrimSuffix(first.body, "}")+`,"refunds":[]}` {
		t.Errorf("made %s, read %s", first.body, got.body)
	}
	c.post(t, path+capture, `{}`).is(t, 409, "invalid-state")
	c.post(t, path+cancel, `{}`).is(t, 409, "invalid-state")
	c.post(t, path+refunds, `{}`).is(t, 409, "invalid-state")

	// What came of it does not change the first answer: it is stored under the key.
	a.settle(t, path, payments.Succeeded)
	again := c.post(t, "/api/v1/payments", " "+card(shop, 100), "Idempotency-Key", "k")
	if again.status != 201 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" || again.header.Get("Location") != path {
		t.Errorf("%d %s", again.status, again.body)
	}
	for _, other := range []string{
		strings.Replace(card(shop, 100), "tok_visa", "tok_amex", 1), card(shop, 101), order(clearing, shop, 100),
	} {
		c.post(t, "/api/v1/payments", other, "Idempotency-Key", "k").is(t, 422, "idempotency-key-reused")
	}

	got := read[payments.Payment](t, c.get(t, path), 200)
	if got.Status != payments.Completed || got.CapturedMinor != 100 || got.SettledAt == nil || got.Version != 2 {
		t.Errorf("%+v", got)
	}
	declined, failed := c.charged(t, shop, 1), c.charged(t, shop, 1)
	a.settle(t, declined, payments.OperationDeclined)
	a.settle(t, failed, payments.OperationFailed)
	for path, want := range map[string]string{declined: `"status":"declined","decline_code":"card-declined"`, failed: `"status":"failed","decline_code":"refused-by-psp"`} {
		if got := c.get(t, path); !strings.Contains(got.body, want) || !strings.Contains(got.body, `"settled_at":"`) {
			t.Errorf("%s", got.body)
		}
		c.post(t, path+refunds, `{}`).is(t, 409, "invalid-state")
	}

	stranger := a.newTenant(t)
	stranger.get(t, path).is(t, 404, "not-found")
	stranger.do(t, "GET", path, "", "Prefer", "wait=5").is(t, 404, "not-found")
	stranger.post(t, path+refunds, `{}`).is(t, 404, "not-found")
}

func TestRefundByCardIsProcessing(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	c.clearing(t)
	shop := c.account(t)
	path := c.charged(t, shop, 100)
	a.settle(t, path, payments.Succeeded)

	first := c.post(t, path+refunds, `{"amount_minor":30}`, "Idempotency-Key", "k", "If-Match", `"2"`)
	if r := read[payments.Refund](t, first, 201); r.Status != payments.Processing || r.PaymentVersion != 3 {
		t.Errorf("%s", first.body)
	}
	refund := first.header.Get("Location")
	if got := c.get(t, refund); got.body != first.body {
		t.Errorf("made %s, read %s", first.body, got.body)
	}
	got := c.get(t, path)
	if p := read[payments.Payment](t, got, 200); p.RefundingMinor != 30 || p.RefundedMinor != 0 || got.header.Get("ETag") != `"3"` {
		t.Errorf("%s", got.body)
	}
	if got := read[payments.Account](t, c.get(t, "/api/v1/accounts/"+shop), 200); got.HeldMinor != 30 || got.BalanceMinor != 100 {
		t.Errorf("%+v", got)
	}
	over := c.post(t, path+refunds, `{"amount_minor":71}`)
	if over.is(t, 422, "amount-exceeds-captured"); !strings.HasSuffix(over.body, `"left_minor":70}`) {
		t.Errorf("%s", over.body)
	}

	a.settle(t, refund, payments.Succeeded)
	again := c.post(t, path+refunds, `{"amount_minor":30}`, "Idempotency-Key", "k", "If-Match", `"2"`)
	if again.body != first.body || again.status != 201 {
		t.Errorf("%d %s", again.status, again.body)
	}
	got = c.get(t, path)
	p := read[payments.Payment](t, got, 200)
	if p.RefundingMinor != 0 || p.RefundedMinor != 30 || p.Version != 4 || !strings.Contains(got.body, `"refunds":[{"id":"`+refund[len("/api/v1/refunds/"):]+`"`) {
		t.Errorf("%s", got.body)
	}
	if r := read[payments.Refund](t, c.get(t, refund), 200); r.Status != payments.Completed || r.SettledAt == nil {
		t.Errorf("%+v", r)
	}

	failed := c.post(t, path+refunds, `{}`).header.Get("Location")
	a.settle(t, failed, payments.OperationFailed)
	if got := c.get(t, failed); !strings.Contains(got.body, `"status":"failed","decline_code":"refused-by-psp"`) {
		t.Errorf("%s", got.body)
	}
	if p := read[payments.Payment](t, c.get(t, path), 200); p.RefundingMinor != 0 || p.RefundedMinor != 30 {
		t.Errorf("%+v", p)
	}
}

func TestWrongPaymentMethodsLeaveNothing(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	c.clearing(t)
	from, to := c.funded(t, 1000), c.account(t)
	before := a.content(t, "")

	for method, want := range map[string][]string{ // code and pointer of each mistake
		`null`:                                  {"invalid-field", "#/payment_method"},
		`"card"`:                                {"invalid-field", "#/payment_method"},
		`["card"]`:                              {"invalid-field", "#/payment_method"},
		`{}`:                                    {"invalid-field", "#/payment_method/type", "invalid-field", "#/payment_method/token"},
		`{"type":"card"}`:                       {"invalid-field", "#/payment_method/token"},
		`{"token":"t"}`:                         {"invalid-field", "#/payment_method/type"},
		`{"type":"Card","token":"t"}`:           {"invalid-field", "#/payment_method/type"},
		`{"type":null,"token":"t"}`:             {"invalid-field", "#/payment_method/type"},
		`{"type":["card"],"token":"t"}`:         {"invalid-field", "#/payment_method/type"},
		`{"type":"card","token":""}`:            {"invalid-field", "#/payment_method/token"},
		`{"type":"card","token":1}`:             {"invalid-field", "#/payment_method/token"},
		`{"type":"card","token":null}`:          {"invalid-field", "#/payment_method/token"},
		`{"type":"card","token":"a b"}`:         {"invalid-field", "#/payment_method/token"},
		`{"type":"card","token":"é"}`:           {"invalid-field", "#/payment_method/token"},
		`{"type":"card","token":"\u007f"}`:      {"invalid-field", "#/payment_method/token"},
		`{"type":"card","token":"t","cvc":"1"}`: {"unknown-field", "#/payment_method/cvc"},
		`{"type":"card","token":"` + strings.Repeat("t", 256) + `"}`: {"invalid-field", "#/payment_method/token"},
	} {
		body := strings.Replace(card(to, 1), byCard, `"payment_method":`+method, 1)
		p := c.post(t, "/api/v1/payments", body).is(t, 422, want[0])
		var got []string
		for _, e := range p.Errors {
			got = append(got, e.Code, e.Pointer)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", method, diff)
		}
	}
	c.post(t, "/api/v1/payments", strings.Replace(card(to, 1), `"card"`, `"card","type":"card"`, 1)).is(t, 400, "duplicate-member")

	both := strings.TrimSuffix(order(from, to, 1), "}") + "," + byCard + "}"
	if p := c.post(t, "/api/v1/payments", both).is(t, 422, "invalid-field"); len(p.Errors) != 1 || p.Errors[0].Pointer != "#/payment_method" {
		t.Errorf("%+v", p)
	}
	neither := strings.Replace(card(to, 1), ","+byCard, "", 1)
	if p := c.post(t, "/api/v1/payments", neither).is(t, 422, "invalid-field"); len(p.Errors) != 1 || p.Errors[0].Pointer != "#/source_account" {
		t.Errorf("%+v", p)
	}
	held := strings.TrimSuffix(card(to, 1), "}") + `,"capture":"manual"}`
	if p := c.post(t, "/api/v1/payments", held).is(t, 422, "invalid-field"); len(p.Errors) != 1 || p.Errors[0].Pointer != "#/capture" {
		t.Errorf("%+v", p)
	}
	if diff := cmp.Diff(before, a.content(t, "")); diff != "" {
		t.Error(diff)
	}
	longest := strings.Replace(card(to, 1), "tok_visa", strings.Repeat("~", 255), 1)
	c.post(t, "/api/v1/payments", strings.TrimSuffix(longest, "}")+`,"capture":"automatic"}`).wantStatus(t, 201)
}

func TestRefusedCardPaymentsLeaveTheirAnswer(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c, poor := a.caller, a.newTenant(t)
	clearing, to := c.clearing(t), c.account(t)
	theirs := poor.account(t)

	for key, k := range map[string]struct {
		who    caller
		body   string
		status int
		code   string
		detail string
	}{
		"off":      {poor, card(theirs, 1), 422, "cards-not-enabled", "the operator opens one"},
		"currency": {c, strings.Replace(card(to, 1), "USD", "EUR", 1), 422, "cards-not-enabled", "in this currency"},
		"same":     {c, card(clearing, 1), 422, "same-account", clearing},
		"none":     {c, card(theirs, 1), 422, "unknown-account", theirs},
		"fund":     {c.newCredential(t), order(clearing, to, 1), 403, "funding-forbidden", "accounts:fund"},
	} {
		before := a.content(t, key)
		first := k.who.post(t, "/api/v1/payments", k.body, "Idempotency-Key", key)
		p := first.is(t, k.status, k.code)
		if !strings.Contains(p.Detail, k.detail) || p.Instance != "/api/v1/payments" || first.header.Get("Idempotent-Replayed") != "false" || first.header.Get("Location") != "" {
			t.Errorf("%s: %v %s", key, first.header, first.body)
		}
		if want := map[bool]string{true: "new-key", false: "never"}[k.code != "same-account"]; p.Retry != want {
			t.Errorf("%s: retry %s", key, p.Retry)
		}
		if diff := cmp.Diff(before, a.content(t, key)); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
		if again := k.who.post(t, "/api/v1/payments", k.body, "Idempotency-Key", key); again.body != first.body {
			t.Errorf("%s: %s", key, again.body)
		}
	}
	c.post(t, "/api/v1/payments", order(clearing, to, 1)).wantStatus(t, 201) // with the scope
}

func TestCardPaymentsAreListedByStatus(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	c.clearing(t)
	to := c.account(t)
	processing, failed := c.charged(t, to, 1), c.charged(t, to, 1)
	a.settle(t, failed, payments.OperationFailed)
	for status, path := range map[string]string{"processing": processing, "failed": failed} {
		for _, filters := range []url.Values{{}, {"account": {to}}} {
			filters.Set("status", status)
			got := all[payments.Payment](t, c, "/api/v1/payments", filters)
			if len(got) != 1 || "/api/v1/payments/"+got[0].ID.String() != path {
				t.Errorf("%v: %+v", filters, got)
			}
		}
	}
}

func TestReadWaitsForThePSP(t *testing.T) {
	t.Parallel()
	// A turn for each of the 20 reads below: none queues.
	var pool *pgxpool.Pool
	a := start(t, func(o *httpapi.Options) {
		config := o.Read.Config()
		config.MaxConns = 40
		var err error
		if pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		o.Read = pool
	})
	a.read = pool
	c := a.caller
	c.clearing(t)
	to := c.account(t)
	wait := func(path, n string) answer { return c.do(t, "GET", path, "", "Prefer", "wait="+n) }
	patient := func(path string) (got answer) { // a pause of the machine may outlast one wait
		for range 12 {
			got = wait(path, "60")
			if !strings.Contains(got.body, `"status":"processing"`) && !strings.Contains(got.body, `"refunding_minor":`) {
				break
			}
		}
		return got
	}
	applied := func(got answer, want string) {
		t.Helper()
		if got.status != 200 || got.header.Get("Preference-Applied") != want {
			t.Errorf("%d %q, want %q", got.status, got.header.Get("Preference-Applied"), want)
		}
	}

	path := c.charged(t, to, 100)
	if got := wait(path, "0"); read[payments.Payment](t, got, 200).Status != payments.Processing || got.header.Get("Preference-Applied") != "wait=0" {
		t.Errorf("%v %s", got.header, got.body)
	}
	began := time.Now()
	got := wait(path, "1")
	if took := time.Since(began); took < time.Second || read[payments.Payment](t, got, 200).Status != payments.Processing {
		t.Errorf("after %v: %s", took, got.body)
	}
	applied(got, "wait=1")

	// Many wait for the charge, and all get its end.
	settled := func(path string, state payments.OperationState) []answer {
		t.Helper()
		var waiting []<-chan answer
		before := a.read.Stat().AcquireCount()
		for range 20 {
			waiting = append(waiting, later(func() answer { return patient(path) }))
		}
		a.reads(t, before+20+1)           // each once, and one of them for all
		c.get(t, path).wantStatus(t, 200) // who waits has given its turn back
		a.settle(t, path, state)
		var answers []answer
		for _, w := range waiting {
			got := <-w
			applied(got, "wait=5")
			answers = append(answers, got)
		}
		return answers
	}
	for _, got := range settled(path, payments.Succeeded) {
		if p := read[payments.Payment](t, got, 200); p.Status != payments.Completed || got.header.Get("ETag") != `"2"` {
			t.Errorf("%s", got.body)
		}
	}
	refund := c.post(t, path+refunds, `{"amount_minor":1}`).header.Get("Location")
	for _, got := range settled(refund, payments.Succeeded) {
		if r := read[payments.Refund](t, got, 200); r.Status != payments.Completed {
			t.Errorf("%s", got.body)
		}
	}

	// A payment with a refund that is processing is not settled.
	refund = c.post(t, path+refunds, `{"amount_minor":1}`).header.Get("Location")
	before := a.read.Stat().AcquireCount()
	w := later(func() answer { return patient(path) })
	a.reads(t, before+2)
	a.settle(t, refund, payments.OperationFailed)
	if p := read[payments.Payment](t, <-w, 200); p.RefundingMinor != 0 || p.Version != 6 {
		t.Errorf("%+v", p)
	}

	// There is nothing to wait for.
	applied(wait(path, "5"), "wait=5")
	applied(wait(c.paid(t, c.funded(t, 10), to, 1), "5"), "wait=5")
	applied(wait(path, "soon"), "")
	applied(c.get(t, path), "")
}

// reads waits until so many reads have begun since the start.
func (a *api) reads(t *testing.T, n int64) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		if got := a.read.Stat().AcquireCount(); got < n {
			return fmt.Errorf("%d of %d reads", got, n)
		}
		return nil
	})
}

func TestIfNoneMatchSavesTheBody(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	path := c.paid(t, c.funded(t, 100), c.account(t), 10)
	get := func(tag string) answer { return c.do(t, "GET", path, "", "If-None-Match", tag) }
	for _, tag := range []string{`"1"`, `W/"1"`, `"7", "1"`, "*"} {
		got := get(tag)
		if got.status != 304 || got.body != "" || got.header.Get("ETag") != `"1"` || got.header.Get("Content-Type") != "" {
			t.Errorf("%s: %d %v %q", tag, got.status, got.header, got.body)
		}
	}
	for _, tag := range []string{`"2"`, "1", "", `"1`, "x"} {
		get(tag).wantStatus(t, 200)
	}
	c.post(t, path+refunds, `{"amount_minor":1}`).wantStatus(t, 201)
	get(`"1"`).wantStatus(t, 200)
	get(`"2"`).wantStatus(t, 304)
}

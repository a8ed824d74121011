package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/fakepsp"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/psp"
	"github.com/oncepay/oncepay/internal/testenv"
)

// cards is a tenant that takes payments by card, and the PSP.
type cards struct {
	env       environment
	db        *pgxpool.Pool
	seeded    seeded
	processor *payments.Processor
	fake      *fakepsp.PSP
	client    *psp.Client
}

func newCards(t *testing.T) *cards {
	t.Helper()
	db := testenv.Database(t)
	fake, err := fakepsp.Open(t.TempDir(), fakepsp.Options{APIKey: "psp_secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fake.Close() })
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)

	c := &cards{
		env: environment{"DATABASE_URL": db.URL, "PSP_URL": server.URL, "PSP_API_KEY": "psp_secret"}, db: db.Pool(t, ""),
		processor: &payments.Processor{DB: db.Pool(t, "api_write"), Retention: idempotency.DefaultRetention, Render: httpapi.Render},
		fake:      fake, client: psp.NewClient(server.URL, "psp_secret", 1),
	}
	mustJSON(t, &c.seeded, c.env, "seed", "--tenant", "acme", "--client", "shop", "--currency", "USD", "--accounts", "1", "--cards")
	return c
}

// pay asks for a payment by card under a key, and claims its operation.
func (c *cards) pay(t *testing.T, key string) payments.Operation {
	t.Helper()
	return c.ask(t, key, payments.CreatePayment{AmountMinor: 2500, Currency: "USD", DestinationAccount: c.seeded.Accounts[0].ID, Card: "tok_visa"})
}

func (c *cards) ask(t *testing.T, key string, command payments.Command) payments.Operation {
	t.Helper()
	answers, err := c.processor.Process(t.Context(), []payments.Request{{
		Request: idempotency.Request{
			TenantID: c.seeded.TenantID, ClientID: c.seeded.ClientID, Key: key, RequestID: uuid.NewString(),
			Fingerprint: idempotency.NewFingerprint(c.seeded.TenantID, "POST", "/", nil, []byte(key)),
		},
		Method: "POST", Route: "/", Command: command,
	}})
	if err != nil || answers[0].Response.Status != 201 {
		t.Fatalf("%v %s", err, answers[0].Response.Body)
	}
	claimed, err := c.processor.ClaimOperations(t.Context(), 10, time.Hour)
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%d claimed, %v", len(claimed), err)
	}
	return claimed[0]
}

func (c *cards) record(t *testing.T, r payments.Result) {
	t.Helper()
	recorded, err := c.processor.Record(t.Context(), []payments.Result{r})
	if err != nil || recorded[0] != payments.Applied {
		t.Fatal(recorded, err)
	}
}

// execute calls the PSP, whether or not we hear of it.
func (c *cards) execute(t *testing.T, o payments.Operation) psp.Entry {
	t.Helper()
	call := c.client.Charge
	if o.Kind == payments.RefundCharge {
		call = c.client.Refund
	}
	a := call(t.Context(), o)
	if a.Outcome != psp.Succeeded {
		t.Fatalf("%+v", a)
	}
	return a.Entry
}

// complete is a charge or a refund as it should be.
func (c *cards) complete(t *testing.T, o payments.Operation) psp.Entry {
	t.Helper()
	e := c.execute(t, o)
	c.record(t, payments.Result{OperationID: o.ID, State: payments.Succeeded, AmountMinor: e.AmountMinor, Currency: e.Currency, Reference: e.Reference})
	return e
}

func (c *cards) askOperator(t *testing.T, o payments.Operation) {
	t.Helper()
	c.record(t, payments.Result{OperationID: o.ID, State: payments.Unknown, Token: o.Token, AskOperator: true, Error: "nobody knows"})
}

func TestPSPListAndShow(t *testing.T) {
	t.Parallel()
	c := newCards(t)
	c.complete(t, c.pay(t, "done"))
	unknown, waiting := c.pay(t, "unknown"), c.pay(t, "waiting")
	c.askOperator(t, waiting)

	var all []operation
	mustJSON(t, &all, c.env, "psp", "list")
	if len(all) != 2 || all[0].ID != waiting.ID || !all[0].AskOperator || all[0].NextTryAt != nil || all[1].ID != unknown.ID || all[1].NextTryAt == nil {
		t.Errorf("%+v", all)
	}
	mustJSON(t, &all, c.env, "psp", "list", "--state", "operator")
	if len(all) != 1 || all[0].ID != waiting.ID || all[0].Tenant != "acme" || all[0].AgeSeconds <= 0 {
		t.Errorf("%+v", all)
	}
	mustJSON(t, &all, c.env, "psp", "list", "--state", "succeeded")
	if len(all) != 1 || all[0].State != payments.Succeeded {
		t.Errorf("%+v", all)
	}
	if out := must(t, c.env, "psp", "list", "--state", "pending"); out != "no operations\n" {
		t.Error(out)
	}
	if out := must(t, c.env, "psp", "list"); !strings.Contains(out, "OPERATOR") || !strings.Contains(out, "nobody knows") {
		t.Error(out)
	}

	var d operationDetails
	mustJSON(t, &d, c.env, "psp", "show", waiting.ID.String())
	if d.Key != waiting.Key() || d.ClientKey != "waiting" || d.Client != "shop" || d.PaymentStatus != "processing" || d.Tries != 1 {
		t.Errorf("%+v", d)
	}
	if out := must(t, c.env, "psp", "show", waiting.ID.String()); !strings.Contains(out, waiting.Key()) {
		t.Error(out)
	}
	if _, stderr, code := oncepay(t, c.env, "psp", "show", uuid.NewString()); code != exitFailed || !strings.Contains(stderr, "no such operation") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestPSPShowOfARefund(t *testing.T) {
	t.Parallel()
	c := newCards(t)
	charge := c.pay(t, "pay")
	e := c.complete(t, charge)
	back := c.ask(t, "back", payments.RefundPayment{Target: payments.Target{PaymentID: charge.PaymentID}, AmountMinor: 500})
	var d operationDetails
	mustJSON(t, &d, c.env, "psp", "show", back.ID.String())
	if d.ClientKey != "back" || d.ChargeReference != e.Reference || d.RefundStatus == nil || *d.RefundStatus != "processing" || d.PaymentStatus != "completed" {
		t.Errorf("%+v", d)
	}
}

func (c *cards) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := c.db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func TestPSPRetryMakesItDue(t *testing.T) {
	t.Parallel()
	c := newCards(t)
	o := c.pay(t, "k")
	c.askOperator(t, o)

	// Restored to before its tenant left: the worker leaves it alone.
	c.exec(t, `INSERT INTO tenant_moves (tenant_id, state, target) SELECT id, 'left', 'elsewhere' FROM tenants`)
	if _, stderr, code := oncepay(t, c.env, "psp", "retry", o.ID.String()); code != exitFailed || !strings.Contains(stderr, "its tenant has left") {
		t.Errorf("of a tenant that has left: %d %q", code, stderr)
	}
	c.exec(t, `DELETE FROM tenant_moves`)

	must(t, c.env, "psp", "retry", o.ID.String())
	claimed, err := c.processor.ClaimOperations(t.Context(), 10, time.Minute)
	if err != nil || len(claimed) != 1 || claimed[0].Tries != 2 {
		t.Fatalf("%+v %v", claimed, err)
	}
	c.complete(t, o)
	if _, stderr, code := oncepay(t, c.env, "psp", "retry", o.ID.String()); code != exitFailed || !strings.Contains(stderr, "it has ended: succeeded") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestPSPResolve(t *testing.T) {
	t.Parallel()
	c := newCards(t)
	o := c.pay(t, "k")
	id := o.ID.String()
	refused := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"psp", "resolve", id, "--by", "ada"}, args...)
		if _, stderr, code := oncepay(t, c.env, args...); code != exitFailed || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d %s", args, code, stderr)
		}
	}
	refused("say one of")
	refused("say one of", "--failed", "--declined")
	refused("needs --reference", "--succeeded", "--amount", "2500")
	refused("needs --amount", "--succeeded", "--reference", "ch_1")
	refused("are for --succeeded", "--failed", "--reference", "ch_1")
	refused("the worker still tries it", "--failed")
	c.askOperator(t, o)
	refused("moved another amount", "--succeeded", "--reference", "ch_1", "--amount", "2501")

	var d operationDetails
	mustJSON(t, &d, c.env, "psp", "resolve", id, "--by", "ada", "--succeeded", "--reference", "ch_1", "--amount", "2500")
	if d.State != payments.Succeeded || d.ResolvedBy != "ada" || d.Reference != "ch_1" || d.PaymentStatus != "completed" {
		t.Errorf("%+v", d)
	}
	must(t, c.env, "psp", "resolve", id, "--by", "ada", "--succeeded", "--reference", "ch_1", "--amount", "2500") // again
	refused("it has ended: succeeded", "--failed")

	declined := c.pay(t, "l")
	mustJSON(t, &d, c.env, "psp", "resolve", declined.ID.String(), "--by", "ada", "--declined", "--anyway")
	if d.PaymentStatus != "declined" || d.Code != "card-declined" {
		t.Errorf("%+v", d)
	}
	failed := c.pay(t, "m")
	c.askOperator(t, failed)
	mustJSON(t, &d, c.env, "psp", "resolve", failed.ID.String(), "--by", "ada", "--failed")
	if d.PaymentStatus != "failed" || d.Code != "refused-by-psp" {
		t.Errorf("%+v", d)
	}
	var balance int64
	if err := c.db.QueryRow(t.Context(), `SELECT balance_minor FROM accounts WHERE id = $1`, c.seeded.Accounts[0].ID).Scan(&balance); err != nil || balance != 2500 {
		t.Errorf("%d, %v", balance, err)
	}
}

func TestReconcilePSP(t *testing.T) {
	t.Parallel()
	c := newCards(t)
	charge := c.pay(t, "pay")
	c.complete(t, charge)
	c.complete(t, c.ask(t, "back", payments.RefundPayment{Target: payments.Target{PaymentID: charge.PaymentID}, AmountMinor: 500}))
	late := c.pay(t, "late")
	c.execute(t, late)

	var r reconciliation
	mustJSON(t, &r, c.env, "reconcile", "psp")
	if r.Charges != 2 || r.Refunds != 1 || r.Operations != 2 || r.InFlight != 1 || r.Differences == nil || len(r.Differences) != 0 {
		t.Errorf("%+v", r)
	}

	// Each in another way.
	made := c.pay(t, "made")
	c.record(t, payments.Result{OperationID: made.ID, State: payments.Succeeded, Reference: "ch_none"})
	amount := c.pay(t, "amount")
	c.complete(t, amount)
	c.exec(t, `UPDATE psp_operations SET amount_minor = amount_minor + 1 WHERE id = $1`, amount.ID)
	refused := c.pay(t, "refused")
	c.execute(t, refused)
	c.record(t, payments.Result{OperationID: refused.ID, State: payments.OperationFailed})
	if err := c.fake.SetFaults(fakepsp.Faults{ForgetKeysAfter: 1}); err != nil {
		t.Fatal(err)
	}
	c.execute(t, charge) // its key is forgotten
	stranger := late
	stranger.ID = uuid.Must(uuid.NewV7())
	c.execute(t, stranger)

	want := map[string]string{
		made.ID.String(): missingThere, amount.ID.String(): otherAmount, refused.ID.String(): endedOtherway,
		charge.ID.String(): chargedTwice, stranger.ID.String(): notOurs, late.ID.String(): notRecorded,
	}
	out, stderr, code := oncepay(t, c.env, "reconcile", "psp", "--in-flight", "0s")
	if code != exitRefused || !strings.Contains(stderr, "the books differ in 6 places") {
		t.Errorf("%d %s", code, stderr)
	}
	for id, what := range want {
		if !lineWith(out, what, id) {
			t.Errorf("lacks %s of %s:\n%s", what, id, out)
		}
	}
	for _, what := range todo {
		if !strings.Contains(out, what.what+":") {
			t.Errorf("does not say what to do about %s", what.what)
		}
	}

	// Of another time only what is not ours is left.
	out, _, code = oncepay(t, c.env, "reconcile", "psp", "--from", "2020-01-01", "--to", "2020-01-02")
	if code != exitRefused || strings.Count(out, "USD") != 1 || !lineWith(out, notOurs, stranger.ID.String()) {
		t.Errorf("%d\n%s", code, out)
	}
}

func lineWith(text, start, part string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, start) && strings.Contains(line, part) {
			return true
		}
	}
	return false
}

// TestReconcileReadsEveryPage: the PSP's pages have 100 entries.
func TestReconcileReadsEveryPage(t *testing.T) {
	t.Parallel()
	c := comparison{
		db: newCards(t).db, window: window{to: time.Now().Add(time.Hour)}, said: time.Now(),
		list: func(_ context.Context, kind payments.OperationKind, after string) ([]psp.Entry, bool, error) {
			if kind == payments.RefundCharge {
				return nil, false, nil
			}
			next := map[string]string{"": "ch_1", "ch_1": "ch_2", "ch_2": "ch_3"}[after]
			return []psp.Entry{{Reference: next, AmountMinor: 1, Currency: "USD"}}, next != "ch_3", nil
		},
	}
	if err := c.compare(t.Context()); err != nil || c.found.Charges != 3 || len(c.found.Differences) != 3 {
		t.Errorf("%+v %v", c.found, err)
	}
}

package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

const pspSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // of the scheme's examples

// withPSP begins an api that the PSP can send webhooks to.
func withPSP(t *testing.T, change func(*httpapi.Options)) *api {
	t.Helper()
	var a *api
	a = start(t, func(o *httpapi.Options) {
		o.PSP = &httpapi.PSPWebhooks{Secret: pspSecret, Record: func(ctx context.Context, r payments.Result) (payments.Recorded, error) {
			recorded, err := a.processor().Record(ctx, []payments.Result{r})
			if err != nil {
				return 0, err
			}
			return recorded[0], nil
		}}
		if change != nil {
			change(o)
		}
	})
	return a
}

// webhook is a delivery of the PSP, signed unless it is changed.
type webhook struct {
	id, signature string
	at            time.Time
	secret        string
}

func (a *api) deliver(t *testing.T, body string, change func(*webhook)) answer {
	t.Helper()
	w := webhook{id: "evt_1", at: time.Now(), secret: pspSecret}
	if change != nil {
		change(&w)
	}
	if w.signature == "" {
		signer, err := standardwebhooks.NewWebhook(w.secret)
		if err == nil {
			w.signature, err = signer.Sign(w.id, w.at, []byte(body))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return caller{api: a}.do(t, "POST", "/webhooks/psp", body, "Idempotency-Key", "",
		"webhook-id", w.id, "webhook-timestamp", strconv.FormatInt(w.at.Unix(), 10), "webhook-signature", w.signature)
}

// event is the body of a webhook.
func event(kind string, operation uuid.UUID, amount int64) string {
	return fmt.Sprintf(`{"id":"evt_1","type":%q,"created":1767225600,"data":{"object":{"id":"ch_1","object":"charge","amount":%d,"currency":"usd",
		"status":"succeeded","metadata":{"operation_id":%q,"payment_id":"0198a6de-5c1f-7000-8000-0123456789ab"}}}}`, kind, amount, operation)
}

// became fails the test unless the webhook had this status and outcome.
func (a *api) became(t *testing.T, got answer, status int, outcome string) {
	t.Helper()
	if got.status != status || status == 204 && (got.body != "" || got.header.Get("Content-Type") != "") {
		t.Errorf("%d %s, want %d", got.status, got.body, status)
	}
	if o := a.last(got.header.Get("X-Request-Id")); o.Webhook != outcome || o.Route != "/webhooks/psp" {
		t.Errorf("it became %q of %s, want %q", o.Webhook, o.Route, outcome)
	}
}

func (c caller) status(t *testing.T, path string) payments.Status {
	t.Helper()
	return read[struct{ Status payments.Status }](t, c.get(t, path), 200).Status
}

func TestWebhookEndsPaymentsAndRefunds(t *testing.T) {
	t.Parallel()
	a := withPSP(t, nil)
	c := a.caller
	c.clearing(t)
	to := c.account(t)

	// Before the worker's result, and delivered again.
	paid := c.charged(t, to, 100)
	operation := a.operation(t, paid)
	claimed, err := a.processor().ClaimOperations(t.Context(), 10, time.Minute)
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	a.became(t, a.deliver(t, event("charge.created", operation, 100), nil), 204, "ignored")
	if s := c.status(t, paid); s != payments.Processing {
		t.Errorf("%s", s)
	}
	a.became(t, a.deliver(t, event("charge.succeeded", operation, 100), nil), 204, "applied")
	if s := c.status(t, paid); s != payments.Completed {
		t.Errorf("%s", s)
	}
	tag := c.get(t, paid).header.Get("ETag")
	for range 2 {
		a.became(t, a.deliver(t, event("charge.succeeded", operation, 100), nil), 204, "repeated")
	}
	recorded, err := a.processor().Record(t.Context(), []payments.Result{{OperationID: operation, State: payments.Succeeded, Token: claimed[0].Token, AmountMinor: 100, Currency: "USD"}})
	if err != nil || recorded[0] != payments.Repeated {
		t.Errorf("the worker's result after it: %v %v", recorded, err)
	}
	a.became(t, a.deliver(t, event("charge.created", operation, 100), nil), 204, "ignored") // out of order
	if now := c.get(t, paid).header.Get("ETag"); now != tag {
		t.Errorf("version %s became %s", tag, now)
	}

	// Before anything was sent, as far as we know.
	declined := c.charged(t, to, 7)
	a.became(t, a.deliver(t, event("charge.declined", a.operation(t, declined), 7), nil), 204, "applied")
	if got := c.get(t, declined); !strings.Contains(got.body, `"status":"declined","decline_code":"card-declined"`) {
		t.Errorf("%s", got.body)
	}

	refund := c.post(t, paid+refunds, `{"amount_minor":30}`).header.Get("Location")
	operation = a.operation(t, refund)
	a.became(t, a.deliver(t, event("refund.created", operation, 30), nil), 204, "ignored")
	a.became(t, a.deliver(t, event("refund.succeeded", operation, 30), nil), 204, "applied")
	if s := c.status(t, refund); s != payments.Completed {
		t.Errorf("%s", s)
	}
}

func TestWebhookThatContradictsIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	a := withPSP(t, func(o *httpapi.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	c := a.caller
	c.clearing(t)
	to := c.account(t)
	logged := func(outcome string, operation uuid.UUID) {
		t.Helper()
		text := log.String()
		log.Reset()
		for _, part := range []string{"level=ERROR", "outcome=" + outcome, "operation_id=" + operation.String(), "payment_id=0198a6de-5c1f-7000-8000-0123456789ab", "reference=ch_1"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %s in %s", part, text)
			}
		}
		if strings.Contains(text, "whsec") || strings.Contains(text, "tok_visa") {
			t.Errorf("the log has a secret: %s", text)
		}
	}

	// A charge of another amount, or in another currency, is not booked.
	path := c.charged(t, to, 100)
	operation := a.operation(t, path)
	for _, body := range []string{
		event("charge.succeeded", operation, 99), event("charge.succeeded", operation, -100),
		strings.Replace(event("charge.succeeded", operation, 100), `"usd"`, `"eur"`, 1),
		strings.Replace(event("charge.succeeded", operation, 100), `"currency":"usd",`, ``, 1),
		event("refund.succeeded", operation, 100), // another kind
	} {
		a.became(t, a.deliver(t, body, nil), 204, "conflict")
		logged("conflict", operation)
	}
	if s := c.status(t, path); s != payments.Processing {
		t.Errorf("%s", s)
	}

	ended := c.charged(t, to, 100)
	a.settle(t, ended, payments.OperationDeclined)
	operation = a.operation(t, ended)
	a.became(t, a.deliver(t, event("charge.succeeded", operation, 100), nil), 204, "conflict")
	logged("conflict", operation)
	if s := c.status(t, ended); s != payments.Declined {
		t.Errorf("%s", s)
	}

	full := c.charged(t, to, 100)
	if _, err := a.owner.Exec(t.Context(), `UPDATE accounts SET balance_minor = 9223372036854775807 WHERE id = $1`, to); err != nil {
		t.Fatal(err)
	}
	operation = a.operation(t, full)
	a.became(t, a.deliver(t, event("charge.succeeded", operation, 100), nil), 204, "unbookable")
	logged("unbookable", operation)

	// An operation of nobody's may be one that a restore lost.
	a.became(t, a.deliver(t, event("charge.succeeded", uuid.New(), 100), nil), 204, "unknown")
	if text := log.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, "reference=ch_1") {
		t.Errorf("it is not logged: %s", text)
	}
	log.Reset()

	// What is not ours is no contradiction.
	a.became(t, a.deliver(t, strings.Replace(event("charge.succeeded", operation, 100), operation.String(), "theirs", 1), nil), 204, "unknown")
	a.became(t, a.deliver(t, `{"type":"charge.succeeded","data":{"object":{"amount":1,"metadata":null}}}`, nil), 204, "unknown")
	a.became(t, a.deliver(t, `{"type":"payout.paid","data":{"object":{"amount":"1.00"}}}`, nil), 204, "ignored")
	a.became(t, a.deliver(t, `{}`, nil), 204, "ignored")
	if log.Len() > 0 {
		t.Errorf("%s", &log)
	}
}

func TestForgedWebhooksChangeNothing(t *testing.T) {
	t.Parallel()
	a := withPSP(t, nil)
	c := a.caller
	c.clearing(t)
	path := c.charged(t, c.account(t), 100)
	operation := a.operation(t, path)
	body := event("charge.succeeded", operation, 100)
	before := a.content(t, "")

	answers := map[string]bool{}
	for name, change := range map[string]func(*webhook){
		"unsigned":         func(w *webhook) { w.signature = " " },
		"no id":            func(w *webhook) { w.id = "" },
		"too old":          func(w *webhook) { w.at = w.at.Add(-6 * time.Minute) },
		"too new":          func(w *webhook) { w.at = w.at.Add(6 * time.Minute) },
		"another secret":   func(w *webhook) { w.secret = "whsec_" + strings.Repeat("A", 32) },
		"another version":  func(w *webhook) { w.signature = "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" },
		"another body":     func(w *webhook) { w.signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" },
		"no signature":     func(w *webhook) { w.signature = "v1," },
		"signed as of old": func(w *webhook) { *w = replayed(t, body, *w) },
	} {
		got := a.deliver(t, body, change)
		if p := got.is(t, 401, "webhook-signature-invalid"); p.Retry != "never" {
			t.Errorf("%s: %+v", name, p)
		}
		a.became(t, got, 401, "forged")
		answers[strings.Replace(got.body, got.header.Get("X-Request-Id"), "", 1)] = true
	}
	if len(answers) != 1 {
		t.Errorf("the answers tell what is wrong: %v", answers)
	}
	// A client's credential is no signature.
	c.do(t, "POST", "/webhooks/psp", body).is(t, 401, "webhook-signature-invalid")

	for body, want := range map[string]string{
		"":                            "webhook-malformed",
		"null":                        "", // an event of no type
		"[]":                          "webhook-malformed",
		`{"type":"charge.succeeded"}`: "webhook-malformed",
		`{"type":"charge.succeeded","data":{"object":[]}}`:                                                                          "webhook-malformed",
		strings.Replace(event("charge.succeeded", operation, 100), `"id":"ch_1",`, "", 1):                                           "webhook-malformed",
		event("charge.succeeded", operation, 0):                                                                                     "webhook-malformed",
		strings.Replace(event("charge.succeeded", operation, 7), `"amount":7`, `"amount":"7"`, 1):                                   "webhook-malformed",
		strings.Replace(event("charge.succeeded", operation, 7), `"amount":7`, `"amount":7.5`, 1):                                   "webhook-malformed",
		strings.Replace(event("charge.succeeded", operation, 7), `"amount":7`, `"amount":`+strings.Repeat("9", 30), 1):              "webhook-malformed",
		strings.Replace(event("charge.succeeded", operation, 7), `"`+operation.String()+`"`, `{"a":["`+operation.String()+`"]}`, 1): "webhook-malformed",
	} {
		got := a.deliver(t, body, nil)
		if want == "" {
			a.became(t, got, 204, "ignored")
			continue
		}
		got.is(t, 400, want)
		a.became(t, got, 400, "malformed")
	}
	if got := a.deliver(t, strings.Repeat(" ", 64<<10)+body, nil); got.status != 413 {
		t.Errorf("%d", got.status)
	}
	caller{api: a}.do(t, "POST", "/webhooks/psp?x=1", body).is(t, 400, "invalid-query")
	caller{api: a}.do(t, "POST", "/webhooks/psp", body, "Content-Type", "text/plain").is(t, 415, "unsupported-media-type")
	caller{api: a}.do(t, "GET", "/webhooks/psp", "").is(t, 405, "method-not-allowed")
	for table, rows := range a.content(t, "") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	if s := c.status(t, path); s != payments.Processing {
		t.Errorf("%s", s)
	}
}

// replayed takes a signature of ten minutes ago and says that it is of now.
func replayed(t *testing.T, body string, w webhook) webhook {
	t.Helper()
	signer, err := standardwebhooks.NewWebhook(w.secret)
	if err == nil {
		w.signature, err = signer.Sign(w.id, w.at.Add(-10*time.Minute), []byte(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWithoutSecretThereIsNoWebhookRoute(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	a.deliver(t, `{}`, nil).is(t, 404, "not-found")
}

// The PSP sends again what is not answered with 2xx.
func TestWebhookThatIsNotRecordedIsRefused(t *testing.T) {
	t.Parallel()
	type outcome struct {
		recorded payments.Recorded
		err      error
	}
	for name, k := range map[string]struct {
		outcome
		status int
		code   string
	}{
		"locked":    {outcome{payments.Locked, nil}, 503, "unavailable"},
		"away":      {outcome{0, &pgconn.ConnectError{}}, 503, "unavailable"},
		"shutdown":  {outcome{0, &pgconn.PgError{Code: "57P01"}}, 503, "unavailable"},
		"queue":     {outcome{0, groupcommit.ErrOverloaded}, 503, "unavailable"},
		"unknown":   {outcome{0, idempotency.ErrOutcomeUnknown}, 503, "outcome-unknown"},
		"unforseen": {outcome{0, errors.New("secret detail")}, 500, "internal"},
		"stale":     {outcome{payments.Stale, nil}, 500, "internal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := withPSP(t, func(o *httpapi.Options) {
				o.PSP.Record = func(context.Context, payments.Result) (payments.Recorded, error) { return k.recorded, k.err }
			})
			got := a.deliver(t, event("charge.succeeded", uuid.New(), 1), nil)
			if got.is(t, k.status, k.code); strings.Contains(got.body, "secret") {
				t.Errorf("%s", got.body)
			}
			a.became(t, got, k.status, "failed")
		})
	}
}

// Strangers and a PSP with a backlog get no more than a place each.
func TestFloodOfWebhooksIsBounded(t *testing.T) {
	t.Parallel()
	const most = 256
	var working atomic.Int64
	open := make(chan struct{})
	a := withPSP(t, func(o *httpapi.Options) {
		o.PSP.Record = func(context.Context, payments.Result) (payments.Recorded, error) {
			working.Add(1)
			<-open
			return payments.Applied, nil
		}
	})
	body := event("charge.succeeded", uuid.New(), 1)
	var all []<-chan answer
	for range most {
		all = append(all, later(func() answer { return a.deliver(t, body, nil) }))
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := working.Load(); n != most {
			return fmt.Errorf("%d are at work", n)
		}
		return nil
	})
	got := a.deliver(t, body, nil)
	if got.is(t, 503, "unavailable"); got.header.Get("Retry-After") == "" {
		t.Errorf("%v", got.header)
	}
	a.became(t, got, 503, "failed")
	a.caller.get(t, "/api/v1/payments").wantStatus(t, http.StatusOK)
	a.caller.account(t)

	close(open)
	for _, w := range all {
		if got := <-w; got.status != 204 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	a.deliver(t, body, nil).wantStatus(t, 204) // the places are free again
}

package contract_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

const (
	accountsPath = "/api/v1/accounts"
	paymentsPath = "/api/v1/payments"
	keysPath     = "/api/v1/idempotency-keys"
)

// One test, because it ends with the question whether all documented answers were seen.
func TestEveryDocumentedAnswerIsGivenAsDescribed(t *testing.T) {
	t.Parallel()
	s, f := start(t), newReferee(t)
	s.paymentOutcomes(t, f)
	s.commandOutcomes(t, f)
	for _, p := range s.posts() {
		s.postsUnderAKey(t, f, p)
		s.malformedPosts(t, f, p.path(t), p.body)
	}
	s.cardOutcomes(t, f)
	s.webhooks(t, f)
	s.webhookOutcomes(t, f)
	s.malformedConditions(t, f)
	s.invalidMembers(t, f)
	s.reads(t, f)
	s.refusedReads(t, f)
	s.withoutOperation(t, f)
	s.inTrouble(t, f)
	s.tooManyReads(t, f)
	f.complete(t)
}

// posted is an operation that takes a POST.
type posted struct {
	name   string
	path   func(*testing.T) string // at which it can be done once more
	body   string
	status int
}

func (s *service) posts() []posted {
	always := func(path string) func(*testing.T) string { return func(*testing.T) string { return path } }
	held := func(what string) func(*testing.T) string {
		return func(t *testing.T) string { return pathOf(s.authorized(t, 2, time.Hour)) + what }
	}
	return []posted{
		{"account", always(accountsPath), `{"currency":"USD","name":"till"}`, 201},
		{"payment", always(paymentsPath), payment(1, "USD", s.rich, s.poor), 201},
		{"capture", held("/capture"), `{"amount_minor":1}`, 200},
		{"cancel", held("/cancel"), `{}`, 200},
		{"webhook endpoint", always(endpointsPath), `{"url":"https://example.com/USD"}`, 201},
		{"webhook secret", s.changed("/rotate-secret"), `{}`, 200},
		{"webhook enabling", s.changed("/enable"), `{}`, 200},
		{"webhook delivery", s.redelivered, `{}`, 200},
		{"refund", func(t *testing.T) string { return pathOf(s.paid(t, 2)) + "/refunds" }, `{"amount_minor":1,"metadata":{"a":"b"}}`, 201},
	}
}

func pathOf(t payments.Target) string { return paymentsPath + "/" + t.PaymentID.String() }

// with is a body with one more member.
func with(body, member string) string {
	if body == "{}" {
		return "{" + member + "}"
	}
	return "{" + member + "," + body[1:]
}

// numbered is n texts with their numbers, one after the other.
func numbered(n int, format, separator string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(format, i))
	}
	return strings.Join(all, separator)
}

func payment(amount int64, currency string, source, destination uuid.UUID) string {
	return fmt.Sprintf(`{"amount_minor":%d,"currency":%q,"source_account":%q,"destination_account":%q}`, amount, currency, source, destination)
}

func (s *service) post(name, path, key, body string, status int, code string) call {
	return call{name: name, handler: s, method: http.MethodPost, path: path, bearer: s.ordinary, key: key, body: body, status: status, code: code}
}

func (s *service) get(name, path string, status int, code string) call {
	return call{name: name, handler: s, method: http.MethodGet, path: path, bearer: s.ordinary, status: status, code: code}
}

func (s *service) paymentOutcomes(t *testing.T, f *referee) {
	t.Helper()
	everything := strings.TrimSuffix(payment(1, "USD", s.rich, s.poor), "}") +
		`,"description":"two\nlines","metadata":{"order":"4711"},"client_reference":"r-1"}`
	brim := s.open(t, payments.Customer, "USD")
	s.spoil(t, `UPDATE accounts SET balance_minor = 9223372036854775807 WHERE id = $1`, brim)
	for _, c := range []call{
		s.post("completed", paymentsPath, `"quoted,key"`, everything, 201, ""),
		s.post("declined", paymentsPath, "declined", payment(1_000_000, "USD", s.poor, s.rich), 402, "insufficient-funds"),
		s.post("from a system account", paymentsPath, "forbidden", payment(1, "USD", s.system, s.rich), 403, "funding-forbidden"),
		s.post("unknown account", paymentsPath, "unknown", payment(1, "USD", s.rich, uuid.New()), 422, "unknown-account"),
		s.post("other currency", paymentsPath, "mixed", payment(1, "USD", s.rich, s.euros), 422, "currency-mismatch"),
		s.post("full to the brim", paymentsPath, "brim", payment(1, "USD", s.rich, brim), 422, "amount-out-of-range"),
	} {
		f.twice(t, c)
	}
	funded := s.post("with the scope", paymentsPath, "funded", payment(5, "USD", s.system, s.rich), 201, "")
	funded.bearer = s.funding
	f.judge(t, funded)
}

// twice makes a call and its repeat, of an answer that is stored under the key.
func (f *referee) twice(t *testing.T, c call) {
	t.Helper()
	first, again := f.judge(t, c), f.judge(t, c)
	if first.Body.String() != again.Body.String() {
		t.Errorf("%s: the repeat differs: %s, %s", c.name, first.Body, again.Body)
	}
	for header, want := range map[string]bool{"Idempotent-Replayed": true, "Original-Request-Id": false, "Original-Date": false} {
		if got := first.Header().Get(header) != ""; got != want || again.Header().Get(header) == "" {
			t.Errorf("%s: %s is %q, and on the repeat %q", c.name, header, first.Header().Get(header), again.Header().Get(header))
		}
	}
	if first.Header().Get("Idempotent-Replayed") != "false" || again.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("%s: first answer and repeat do not say which they are", c.name)
	}
}

// commandOutcomes is what becomes of captures, cancels and refunds.
func (s *service) commandOutcomes(t *testing.T, f *referee) {
	t.Helper()
	hour := time.Hour
	held := func() string { return pathOf(s.authorized(t, 10, hour)) }
	paid := func() string { return pathOf(s.paid(t, 10)) }
	canceled := s.authorized(t, 10, hour)
	s.do(t, payments.CancelPayment{Target: canceled})
	over, brim, none := held(), held(), paymentsPath+"/"+uuid.NewString()
	s.spoil(t, `UPDATE payments SET authorization_expires_at = now() - interval '1 hour' WHERE id = $1`, over[len(paymentsPath)+1:])

	n := 0
	post := func(name, path, body string, status int, code string) call {
		n++
		return s.post(name, path, fmt.Sprintf("command-%d", n), body, status, code)
	}
	matching := func(c call, tag string) call {
		c.header = map[string]string{"If-Match": tag}
		return c
	}
	calls := []call{
		post("held", paymentsPath, with(payment(1, "USD", s.rich, s.poor), `"capture":"manual"`), 201, ""),
		post("held for a while", paymentsPath, with(payment(1, "USD", s.rich, s.poor), `"capture":"manual","authorization_seconds":60`), 201, ""),
		post("not held", paymentsPath, with(payment(1, "USD", s.rich, s.poor), `"capture":"automatic"`), 201, ""),
		post("capture a part", held()+"/capture", `{"amount_minor":3}`, 200, ""),
		matching(post("capture all", held()+"/capture", `{}`, 200, ""), `"1"`),
		matching(post("cancel", held()+"/cancel", `{}`, 200, ""), "*"),
		matching(post("refund all", paid()+"/refunds", `{"reason":"two\nlines","metadata":{"return":"r-9"}}`, 201, ""), `"1"`),
		post("capture too much", held()+"/capture", `{"amount_minor":11}`, 422, "amount-exceeds-authorized"),
		post("refund too much", paid()+"/refunds", `{"amount_minor":11}`, 422, "amount-exceeds-captured"),
		post("refund a hold", held()+"/refunds", `{}`, 409, "invalid-state"),
	}
	for _, what := range []string{"/capture", "/cancel"} {
		calls = append(calls,
			post("canceled"+what, pathOf(canceled)+what, `{}`, 409, "invalid-state"),
			post("over"+what, over+what, `{}`, 409, "authorization-expired"))
	}
	for _, what := range []string{"/capture", "/cancel", "/refunds"} {
		calls = append(calls,
			post("none"+what, none+what, `{}`, 404, "not-found"),
			matching(post("moved on"+what, held()+what, `{}`, 412, "version-mismatch"), `"2"`))
	}
	for _, c := range calls {
		f.twice(t, c)
	}

	// An account that is full takes neither a capture nor a refund.
	repaid := paid()
	full := func(account uuid.UUID) (restore func()) {
		var before int64
		if err := s.owner.QueryRow(t.Context(), `SELECT balance_minor FROM accounts WHERE id = $1`, account).Scan(&before); err != nil {
			t.Fatal(err)
		}
		s.spoil(t, `UPDATE accounts SET balance_minor = 9223372036854775807 WHERE id = $1`, account)
		return func() { s.spoil(t, `UPDATE accounts SET balance_minor = $2 WHERE id = $1`, account, before) }
	}
	restore := full(s.poor)
	f.twice(t, post("capture to the brim", brim+"/capture", `{}`, 422, "amount-out-of-range"))
	restore()
	restore = full(s.rich)
	f.twice(t, post("refund to the brim", repaid+"/refunds", `{}`, 422, "amount-out-of-range"))
	restore()

	spent := paid()
	s.empty(t, s.poor)
	f.twice(t, post("the payee has spent it", spent+"/refunds", `{}`, 402, "insufficient-funds"))
	s.paid(t, 1000)
}

// malformedConditions sends what If-Match must not be.
func (s *service) malformedConditions(t *testing.T, f *referee) {
	t.Helper()
	for _, what := range []string{"/capture", "/cancel", "/refunds"} {
		for _, tag := range []string{`W/"1"`, `"1", "2"`, "1", `"0"`, `"01"`, `"x"`, `""`} {
			c := s.post("If-Match "+tag, paymentsPath+"/"+uuid.NewString()+what, "k1", "{}", 400, "if-match-invalid")
			c.header = map[string]string{"If-Match": tag}
			f.judge(t, c)
		}
		f.judge(t, s.post("no id", paymentsPath+"/1"+what, "k1", "{}", 404, "not-found"))
	}
	refunds := paymentsPath + "/" + uuid.NewString() + "/refunds"
	for _, body := range []string{`{"reason":1}`, `{"reason":"` + strings.Repeat("r", 501) + `"}`, `{"metadata":[]}`} {
		f.judge(t, s.post("refund", refunds, "k1", body, 422, "invalid-field"))
	}
	for _, path := range []string{refunds, paymentsPath + "/" + uuid.NewString() + "/capture"} {
		for _, amount := range []string{"0", "-1", "1.5", `"1"`, "null", "1000000000001"} {
			f.judge(t, s.post("amount "+amount, path, "k1", `{"amount_minor":`+amount+`}`, 422, "invalid-amount"))
		}
	}
	for _, member := range []string{
		`"capture":"later"`, `"capture":null`, `"authorization_seconds":60`, `"capture":"automatic","authorization_seconds":60`,
		`"capture":"manual","authorization_seconds":59`, `"capture":"manual","authorization_seconds":2592001`, `"capture":"manual","authorization_seconds":"60"`,
	} {
		f.judge(t, s.post(member, paymentsPath, "k1", with(payment(1, "USD", s.rich, s.poor), member), 422, "invalid-field"))
	}
}

func (s *service) postsUnderAKey(t *testing.T, f *referee, p posted) {
	t.Helper()
	path, body := p.path(t), p.body
	first := s.post("first", path, "k"+path, body, p.status, "")
	first.header = map[string]string{"Prefer": "wait=5", "X-Request-Id": "contract-1"}
	f.judge(t, first)
	other := s.post("another request", path, "k"+path, strings.Replace(body, "USD", "EUR", 1), 422, "idempotency-key-reused")
	if other.body == body {
		other.path = p.path(t)
	}
	f.judge(t, other)

	s.hold(t, "held"+path)
	held := s.post("another attempt at work", path, "held"+path, body, 409, "request-in-progress")
	f.judge(t, held)
	held.header = map[string]string{"Prefer": "wait=0"}
	if applied := f.judge(t, held).Header().Get("Preference-Applied"); applied != "wait=0" {
		t.Errorf("%s: Preference-Applied is %q", path, applied)
	}

	limited, path := s.with(func(o *httpapi.Options) { o.RateLimit = 0.001 }), p.path(t)
	for i, c := range []call{
		s.post("within the rate", path, "rate1"+path, body, p.status, ""),
		s.post("over the rate", path, "rate2"+path, body, 429, "rate-limited"),
		s.post("over the rate, a repeat", path, "rate1"+path, body, p.status, ""),
	} {
		if c.handler = limited; i == 1 {
			c.header = map[string]string{"Prefer": "wait=1"}
		}
		f.judge(t, c)
	}

	path = p.path(t)
	f.judge(t, s.post("by a newer version", path, "newer"+path, body, p.status, ""))
	s.spoil(t, `UPDATE idempotency_keys SET fingerprint_version = 99 WHERE key = $1`, "newer"+path)
	f.judge(t, s.post("by a newer version", path, "newer"+path, body, 503, "idempotency-key-unreadable"))

	for code, err := range map[string]error{"outcome-unknown": idempotency.ErrOutcomeUnknown, "unavailable": context.DeadlineExceeded} {
		c := s.post("Submit fails", path, "fails", body, 503, code)
		c.handler = s.with(func(o *httpapi.Options) {
			o.Submit = func(context.Context, payments.Request) (idempotency.Answer, error) { return idempotency.Answer{}, err }
			o.Write = failing{err}
		})
		f.judge(t, c)
	}
	c := s.post("Submit panics", path, "panics", body, 500, "internal")
	c.handler = s.with(func(o *httpapi.Options) {
		o.Submit = func(context.Context, payments.Request) (idempotency.Answer, error) { panic(errUnforeseen) }
		o.Write = failing{}
	})
	f.judge(t, c)
}

// late is a body whose rest does not come before the server's deadline.
type late struct{}

func (late) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func (s *service) malformedPosts(t *testing.T, f *referee, path, body string) {
	t.Helper()
	slow := s.post("slow", path, "k1", "", 408, "request-timeout")
	slow.reader = late{}
	xml := s.post("another media type", path, "k1", body, 415, "unsupported-media-type")
	xml.header = map[string]string{"Content-Type": "application/xml"}
	packed := s.post("compressed", path, "k1", body, 415, "unsupported-media-type")
	packed.header = map[string]string{"Content-Encoding": "gzip"}
	nobody := s.post("no credential", path, "k1", body, 401, "unauthorized")
	nobody.bearer = ""
	for _, c := range []call{
		s.post("no key", path, "", body, 400, "idempotency-key-missing"),
		s.post("list of keys", path, "k1,k2", body, 400, "idempotency-key-invalid"),
		s.post("long key", path, strings.Repeat("k", 256), body, 400, "idempotency-key-invalid"),
		s.post("blank in a quoted key", path, `"k 1"`, body, 400, "idempotency-key-invalid"),
		s.post("query", path+"?limit=1", "k1", body, 400, "invalid-query"),
		s.post("empty", path, "k1", "", 400, "malformed-json"),
		s.post("cut", path, "k1", body[:len(body)-1], 400, "malformed-json"),
		s.post("array", path, "k1", "["+body+"]", 400, "malformed-json"),
		s.post("no UTF-8", path, "k1", "{\"currency\":\"\xff\"}", 400, "invalid-encoding"),
		s.post("duplicate", path, "k1", `{"currency":"USD","currency":"EUR"}`, 400, "duplicate-member"),
		s.post("large", path, "k1", strings.Repeat(" ", 64<<10)+body, 413, "body-too-large"),
		s.post("unknown member", path, "k1", with(body, `"status":"completed"`), 422, "unknown-field"),
		s.post("a currency too many", path, "k1", with(strings.Replace(body, "currency", "c", 1), `"Currency":"USD"`), 422, "unknown-field"),
		s.post("many unknown members", path, "k1", "{"+numbered(400, `"m%d":1`, ",")+"}", 422, "unknown-field"),
		s.post("a long name", path, "k1", with(body, `"`+strings.Repeat("\u20ac", 10_000)+`":1`), 422, "unknown-field"),
		slow, xml, packed, nobody,
	} {
		f.judge(t, c)
	}
	if !strings.Contains(body, "currency") {
		return
	}
	f.judge(t, s.post("other case", path, "k1", strings.Replace(body, "currency", "Currency", 1), 422, "unknown-field"))
	f.judge(t, s.post("null", path, "k1", strings.Replace(body, `"USD"`, "null", 1), 422, "invalid-field"))
	f.judge(t, s.post("unknown currency", path, "k1", strings.Replace(body, "USD", "XXX", 1), 422, "invalid-currency"))
}

func (s *service) invalidMembers(t *testing.T, f *referee) {
	t.Helper()
	valid := payment(1, "USD", s.rich, s.poor)
	with := func(member string) string { return with(valid, member) }
	amount := func(v string) string {
		return strings.Replace(valid, `"amount_minor":1,`, `"amount_minor":`+v+`,`, 1)
	}
	for _, v := range []string{`"100"`, "0", "-1", "2.5", "1000000000001", "null", "99999999999999999999"} {
		f.judge(t, s.post("amount "+v, paymentsPath, "k1", amount(v), 422, "invalid-amount"))
	}
	var pairs []string
	for i := range 21 {
		pairs = append(pairs, fmt.Sprintf(`"%d":""`, i))
	}
	for name, member := range map[string]string{
		"long description":  `"description":"` + strings.Repeat("é", 501) + `"`,
		"control character": `"client_reference":"\u009f"`,
		"long reference":    `"client_reference":"` + strings.Repeat("r", 256) + `"`,
		"many pairs":        `"metadata":{` + strings.Join(pairs, ",") + `}`,
		"number as value":   `"metadata":{"a":1}`,
		"empty name":        `"metadata":{"":"a"}`,
		"long name":         `"metadata":{"` + strings.Repeat("n", 41) + `":""}`,
		"long value":        `"metadata":{"a":"` + strings.Repeat("v", 501) + `"}`,
	} {
		f.judge(t, s.post(name, paymentsPath, "k1", with(member), 422, "invalid-field"))
	}
	for name, member := range map[string]string{
		"longest description": `"description":"` + strings.Repeat("é", 500) + `"`,
		"most pairs":          `"metadata":{` + strings.Join(pairs[:20], ",") + `}`,
		"longest pair":        `"metadata":{"` + strings.Repeat("n", 40) + `":"` + strings.Repeat("é", 500) + `"}`,
		"longest reference":   `"client_reference":"` + strings.Repeat("r", 255) + `"`,
	} {
		f.judge(t, s.post(name, paymentsPath, strings.ReplaceAll(name, " ", "-"), with(member), 201, ""))
	}
	for _, c := range []call{
		s.post("major units", paymentsPath, "k1", with(`"amount":250.00`), 422, "invalid-amount"),
		s.post("account in capitals", paymentsPath, "k1", strings.Replace(valid, s.rich.String(), strings.ToUpper(s.rich.String()), 1), 422, "invalid-field"),
		s.post("to itself", paymentsPath, "k1", payment(1, "USD", s.rich, s.rich), 422, "same-account"),
		s.post("long name", accountsPath, "k1", `{"currency":"USD","name":"`+strings.Repeat("é", 101)+`"}`, 422, "invalid-field"),
		s.post("longest name", accountsPath, "longest-name", `{"currency":"JPY","name":"`+strings.Repeat("é", 100)+`"}`, 201, ""),
		s.post("longest key", accountsPath, strings.Repeat("~", 255), `{"currency":"KWD"}`, 201, ""),
	} {
		f.judge(t, c)
	}
}

func (s *service) reads(t *testing.T, f *referee) {
	t.Helper()
	done := f.judge(t, s.post("for reading", paymentsPath, "read/me", payment(1, "USD", s.rich, s.poor), 201, ""))
	location := done.Header().Get("Location")
	if again := f.judge(t, s.get("the payment", location, 200, "")); again.Body.String() != strings.TrimSuffix(done.Body.String(), "}")+`,"refunds":[]}` || again.Header().Get("ETag") != `"1"` {
		t.Errorf("made as %s, read as %s %s", done.Body, again.Header().Get("ETag"), again.Body)
	}
	refund := f.judge(t, s.post("to be read", location+"/refunds", "refund-to-read", `{"reason":"r"}`, 201, ""))
	if again := f.judge(t, s.get("the refund", refund.Header().Get("Location"), 200, "")); again.Body.String() != refund.Body.String() {
		t.Errorf("made as %s, read as %s", refund.Body, again.Body)
	}
	if again := f.judge(t, s.get("the refunded payment", location, 200, "")); !strings.HasSuffix(again.Body.String(), `,"version":2,"refunds":[`+refund.Body.String()+`]}`) {
		t.Errorf("read as %s", again.Body)
	}
	declined := f.judge(t, s.post("a declined one", paymentsPath, "declined-too", payment(1_000_000, "USD", s.poor, s.rich), 402, "insufficient-funds"))
	instance := declined.Body.String()
	instance = instance[strings.Index(instance, `"instance":"`)+len(`"instance":"`):]
	for _, c := range []call{
		s.get("the declined payment", instance[:strings.IndexByte(instance, '"')], 200, ""),
		s.get("payments", paymentsPath, 200, ""),
		s.get("the first page", paymentsPath+"?limit=1", 200, ""),
		s.get("payments of an account", paymentsPath+"?limit=100&account="+s.poor.String()+"&from=2026-01-01T00:00:00Z&to=2999-01-01T00:00:00%2B01:00", 200, ""),
		s.get("refunds", location+"/refunds", 200, ""),
		s.get("authorized payments", paymentsPath+"?status=authorized", 200, ""),
		s.get("canceled payments of an account", paymentsPath+"?status=canceled&account="+s.poor.String(), 200, ""),
		s.get("no payments", paymentsPath+"?account="+uuid.NewString(), 200, ""),
		s.get("an account", accountsPath+"/"+s.rich.String(), 200, ""),
		s.get("a system account", accountsPath+"/"+s.system.String(), 200, ""),
		s.get("entries", accountsPath+"/"+s.system.String()+"/entries", 200, ""),
		s.get("the first entry", accountsPath+"/"+s.rich.String()+"/entries?limit=1", 200, ""),
		s.get("a finished key", keysPath+"/funded", 200, ""),
		s.get("a key that was refused", keysPath+"/declined", 200, ""),
		s.get("an unknown key", keysPath+"/never", 200, ""),
	} {
		f.judge(t, c)
	}
	s.hold(t, "held")
	if w := f.judge(t, s.get("a held key", keysPath+"/held", 200, "")); !strings.Contains(w.Body.String(), `"in_progress"`) {
		t.Errorf("a held key is %s", w.Body)
	}
	for _, path := range []string{"/livez", "/readyz"} {
		f.judge(t, call{name: "health", handler: s, method: http.MethodGet, path: path, status: 200})
	}
}

func (s *service) refusedReads(t *testing.T, f *referee) {
	t.Helper()
	account := accountsPath + "/" + s.rich.String()
	foreign := s.get("of another tenant", account, 404, "not-found")
	foreign.bearer = s.stranger
	for _, c := range []call{
		foreign,
		s.get("no such payment", paymentsPath+"/"+uuid.NewString(), 404, "not-found"),
		s.get("no id", accountsPath+"/1", 404, "not-found"),
		s.get("entries of no account", accountsPath+"/"+uuid.NewString()+"/entries", 404, "not-found"),
		s.get("query", account+"?x=1", 400, "invalid-query"),
		s.get("query", paymentsPath+"/"+uuid.NewString()+"?x=1", 400, "invalid-query"),
		s.get("query", "/api/v1/refunds/"+uuid.NewString()+"?x=1", 400, "invalid-query"),
		s.get("query", paymentsPath+"/"+uuid.NewString()+"/refunds?x=1", 400, "invalid-query"),
		s.get("cursor", paymentsPath+"/"+uuid.NewString()+"/refunds?cursor=x", 400, "invalid-cursor"),
		s.get("no such refund", "/api/v1/refunds/"+uuid.NewString(), 404, "not-found"),
		s.get("refunds of no payment", paymentsPath+"/"+uuid.NewString()+"/refunds", 404, "not-found"),
		s.get("status", paymentsPath+"?status=Completed", 400, "invalid-query"),
		s.get("query", keysPath+"/k?x=1", 400, "invalid-query"),
		s.get("limit", account+"/entries?limit=0", 400, "invalid-query"),
		s.get("a parameter without a name", paymentsPath+"?=1", 400, "invalid-query"),
		s.get("a parameter without a name", account+"?&=", 400, "invalid-query"),
		s.get("a long parameter", paymentsPath+"?"+strings.Repeat("%C3%A9", 1000)+"=1", 400, "invalid-query"),
		s.get("many parameters", paymentsPath+"?"+numbered(200, "p%d=1", "&"), 400, "invalid-query"),
		s.get("an empty cursor", paymentsPath+"?cursor=", 400, "invalid-cursor"),
		s.get("limit and time", paymentsPath+"?limit=101&from=yesterday", 400, "invalid-query"),
		s.get("cursor", account+"/entries?cursor=x", 400, "invalid-cursor"),
		s.get("cursor", paymentsPath+"?cursor=x", 400, "invalid-cursor"),
		s.get("long key", keysPath+"/"+strings.Repeat("k", 256), 400, "idempotency-key-invalid"),
	} {
		f.judge(t, c)
	}
}

func (s *service) withoutOperation(t *testing.T, f *referee) {
	t.Helper()
	for _, c := range []call{
		{method: http.MethodGet, path: "/", status: 404, code: "not-found"},
		{method: http.MethodGet, path: "/api/v1/refunds", status: 404, code: "not-found"},
		{method: http.MethodGet, path: paymentsPath + "/" + uuid.NewString() + "/capture", status: 405, code: "method-not-allowed"},
		{method: http.MethodPut, path: paymentsPath + "/" + uuid.NewString() + "/refunds", status: 405, code: "method-not-allowed"},
		{method: http.MethodGet, path: accountsPath, status: 405, code: "method-not-allowed"},
		{method: http.MethodPut, path: paymentsPath, status: 405, code: "method-not-allowed"},
		{method: http.MethodDelete, path: paymentsPath + "/" + uuid.NewString(), status: 405, code: "method-not-allowed"},
		{method: http.MethodPost, path: "/livez", status: 405, code: "method-not-allowed"},
	} {
		c.name, c.handler, c.bearer, c.key = "no operation", s, s.ordinary, "k1"
		f.judge(t, c)
	}
}

// inTrouble asks every operation without a credential, without a database, and with one that refuses.
func (s *service) inTrouble(t *testing.T, f *referee) {
	t.Helper()
	down := s.with(func(o *httpapi.Options) {
		o.Credentials, o.Read = credentials.NewVerifier(nowhere(t), time.Now), nowhere(t)
		o.Ready = func(context.Context) error { return errUnforeseen }
	})
	broken := s.with(func(o *httpapi.Options) { // api_read must not see credentials
		o.Credentials = credentials.NewVerifier(s.db.Pool(t, "api_read"), time.Now)
	})
	calls := s.allReads()
	for _, p := range s.posts() {
		calls = append(calls, s.post("", p.path(t), "trouble", p.body, 0, ""))
	}
	for _, c := range calls {
		c.name, c.status, c.code, c.handler = "database down", 503, "unavailable", down
		f.judge(t, c)
		c.name, c.status, c.code, c.handler = "database broken", 500, "internal", broken
		f.judge(t, c)
		c.name, c.status, c.code, c.handler, c.bearer = "bad credential", 401, "unauthorized", s, "oncepay_x"
		f.judge(t, c)
	}
	f.judge(t, call{name: "not ready", handler: down, method: http.MethodGet, path: "/readyz", status: 503, code: "unavailable"})
}

// allReads asks each operation that reads something.
func (s *service) allReads() []call {
	id := "/" + uuid.NewString()
	return []call{
		s.get("", paymentsPath, 0, ""), s.get("", paymentsPath+id, 0, ""), s.get("", paymentsPath+id+"/refunds", 0, ""), s.get("", "/api/v1/refunds"+id, 0, ""),
		s.get("", accountsPath+id, 0, ""),
		s.get("", accountsPath+id+"/entries", 0, ""), s.get("", keysPath+"/k", 0, ""),
		s.get("", endpointsPath, 0, ""), s.get("", endpointsPath+id, 0, ""), s.get("", endpointsPath+id+"/deliveries", 0, ""),
	}
}

// tooManyReads lets one read wait for a lock, at an API with one connection: its tenant has no turn for another.
func (s *service) tooManyReads(t *testing.T, f *referee) {
	t.Helper()
	config := s.options.Read.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	busy := s.with(func(o *httpapi.Options) { o.Read = pool })

	for _, c := range s.allReads() { // a lock for each: all of them take five of the handler's eight seconds
		held, err := s.owner.Begin(t.Context())
		if err == nil {
			_, err = held.Exec(t.Context(), `LOCK TABLE payments`)
		}
		if err != nil {
			t.Fatal(err)
		}
		first := make(chan int, 1)
		go func() {
			w := httptest.NewRecorder()
			busy.ServeHTTP(w, s.get("", paymentsPath, 0, "").request(t))
			first <- w.Code
		}()
		testenv.Eventually(t, 10*time.Second, func() error {
			if pool.Stat().AcquiredConns() == 0 {
				return errors.New("it has not begun")
			}
			return nil
		})

		c.name, c.status, c.code, c.handler = "too many reads", 429, "rate-limited", busy
		f.judge(t, c)
		_ = held.Rollback(t.Context())
		if status := <-first; status != 200 {
			t.Errorf("the one that had the turn got %d", status)
		}
	}
}

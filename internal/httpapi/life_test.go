package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

const capture, cancel, refunds = "/capture", "/cancel", "/refunds"

// held is the path of a payment that is authorized for so many seconds.
func (c caller) held(t *testing.T, from, to string, amount int64, seconds int) string {
	t.Helper()
	body := strings.TrimSuffix(order(from, to, amount), "}") + fmt.Sprintf(`,"capture":"manual","authorization_seconds":%d}`, seconds)
	return "/api/v1/payments/" + read[payments.Payment](t, c.post(t, "/api/v1/payments", body), http.StatusCreated).ID.String()
}

func (c caller) paid(t *testing.T, from, to string, amount int64) string {
	t.Helper()
	return "/api/v1/payments/" + c.pay(t, from, to, amount).ID.String()
}

// over moves the end of an authorization into the past; sweep releases it.
func (a *api) over(t *testing.T, payment string, sweep bool) {
	t.Helper()
	a.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE payments SET authorization_expires_at = now() - interval '1 minute' WHERE id = $1`, payment[len("/api/v1/payments/"):])
		return err
	})
	if !sweep {
		return
	}
	processor := payments.Processor{DB: a.write, Retention: idempotency.DefaultRetention, Render: httpapi.Render}
	testenv.Eventually(t, 10*time.Second, func() error {
		n, err := processor.ExpireBatch(t.Context(), 10)
		if err == nil && n == 0 {
			err = errors.New("nothing has expired")
		}
		return err
	})
}

// lifeTables are what a refusal must leave as it was. Of the keys the refusal takes its own.
var lifeTables = map[string]string{
	"payments": "id", "refunds": "id", "accounts": "id", "ledger_entries": "account_id, entry_no",
	"payment_commands": "payment_id, version", "outbox_events": "id", "idempotency_keys": "key",
}

// content is everything in the tables, except the rows of one key.
func (a *api) content(t *testing.T, key string) map[string]string {
	t.Helper()
	all := map[string]string{}
	a.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		for table, order := range lifeTables {
			where := ""
			if table == "idempotency_keys" {
				where = "WHERE key <> '" + key + "'"
			}
			var rows string
			err := tx.QueryRow(ctx, fmt.Sprintf(`SELECT coalesce(string_agg(r::text, E'\n' ORDER BY %s), '') FROM %s r %s`, order, table, where)).Scan(&rows)
			if err != nil {
				return err
			}
			all[table] = rows
		}
		return nil
	})
	return all
}

func TestRefusedCommandsLeaveOnlyTheirAnswer(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c, stranger := a.caller, a.newTenant(t)
	from, to := c.funded(t, 10_000), c.account(t)
	c.pay(t, from, to, 1000)
	const day = 86400

	authorized, completed := c.held(t, from, to, 100, day), c.paid(t, from, to, 100)
	canceled := c.held(t, from, to, 100, day)
	c.post(t, canceled+cancel, `{}`).wantStatus(t, http.StatusOK)
	captured := c.held(t, from, to, 100, day)
	c.post(t, captured+capture, `{"amount_minor":60}`).wantStatus(t, http.StatusOK)
	refunded := c.paid(t, from, to, 100)
	c.post(t, refunded+refunds, `{}`).wantStatus(t, http.StatusCreated)
	swept, unswept := c.held(t, from, to, 100, day), c.held(t, from, to, 100, day)
	a.over(t, swept, true)
	a.over(t, unswept, false)
	declined := c.post(t, "/api/v1/payments", order(from, to, 1_000_000)).is(t, 402, "insufficient-funds").Instance
	none := "/api/v1/payments/" + uuid.Must(uuid.NewV7()).String()

	type refusal struct {
		path, body, match string
		who               caller
		status            int
		code              string
		left              string // left_minor; empty: absent
	}
	var cases []refusal
	add := func(path, body, match string, status int, code, left string) {
		cases = append(cases, refusal{path, body, match, c, status, code, left})
	}

	// Every command on every status that does not allow it.
	for path, codes := range map[string][3]string{
		completed: {"invalid-state", "invalid-state", ""},
		captured:  {"invalid-state", "invalid-state", ""},
		canceled:  {"invalid-state", "invalid-state", "invalid-state"},
		declined:  {"invalid-state", "invalid-state", "invalid-state"},
		swept:     {"authorization-expired", "authorization-expired", "invalid-state"},
		unswept:   {"authorization-expired", "authorization-expired", "invalid-state"},
		// authorized can be captured and canceled
		authorized: {"", "", "invalid-state"},
	} {
		for i, command := range []string{capture, cancel, refunds} {
			if codes[i] != "" {
				add(path+command, `{}`, "", 409, codes[i], "")
			}
		}
	}

	for _, command := range []string{capture, cancel, refunds} {
		add(none+command, `{}`, "", 404, "not-found", "")
		add(none+command, `{}`, `"1"`, 404, "not-found", "")
		add(none+command, `{}`, "*", 404, "not-found", "")
		cases = append(cases, refusal{authorized + command, `{}`, "", stranger, 404, "not-found", ""})
		add(authorized+command, `{}`, `"2"`, 412, "version-mismatch", "")
		add(captured+command, `{}`, `"1"`, 412, "version-mismatch", "")
		add(captured+command, `{}`, `"9223372036854775807"`, 412, "version-mismatch", "")
	}
	add(authorized+capture, `{"amount_minor":101}`, `"1"`, 422, "amount-exceeds-authorized", "100")
	add(authorized+capture, `{"amount_minor":1000000000000}`, "", 422, "amount-exceeds-authorized", "100")
	add(completed+refunds, `{"amount_minor":101}`, "", 422, "amount-exceeds-captured", "100")
	add(captured+refunds, `{"amount_minor":61}`, "", 422, "amount-exceeds-captured", "60")
	add(refunded+refunds, `{"amount_minor":1}`, "", 422, "amount-exceeds-captured", "0")
	add(refunded+refunds, `{}`, "", 422, "amount-exceeds-captured", "0")

	for i, k := range cases {
		name := fmt.Sprintf("%s %s %s %s", k.code, k.path[strings.LastIndex(k.path, "/")+1:], k.body, k.match)
		key := fmt.Sprintf("refused-%d", i)
		before := a.content(t, key)
		first := k.who.post(t, k.path, k.body, "Idempotency-Key", key, "If-Match", k.match, "X-Request-Id", "first-"+key)
		p := first.is(t, k.status, k.code)
		if want := k.path[:strings.LastIndex(k.path, "/")]; p.Instance != want {
			t.Errorf("%s: instance is %s, want %s", name, p.Instance, want)
		}
		if about := strings.Contains(first.body, `"payment_status":"`) && strings.Contains(first.body, `"payment_version":`) && p.PaymentID != ""; about != (k.code != "not-found") {
			t.Errorf("%s: %s", name, first.body)
		}
		if strings.Contains(first.body, "left_minor") != (k.left != "") || !strings.HasSuffix(first.body, k.left+"}") {
			t.Errorf("%s: left_minor is not %q: %s", name, k.left, first.body)
		}
		if first.header.Get("Location") != "" || first.header.Get("Idempotent-Replayed") != "false" {
			t.Errorf("%s: %v", name, first.header)
		}
		if diff := cmp.Diff(before, a.content(t, key)); diff != "" {
			t.Errorf("%s: it left more than its answer:\n%s", name, diff)
		}

		again := k.who.post(t, k.path, " "+k.body+"\n", "Idempotency-Key", key, "If-Match", k.match)
		if again.status != first.status || again.body != first.body || again.header.Get("Original-Request-Id") != "first-"+key {
			t.Errorf("%s: the repeat differs:\n%s\n%s", name, first.body, again.body)
		}
	}

	// A stranger learns nothing: the same bytes for a payment that is not there and one that is not his.
	mine := stranger.post(t, authorized+capture, `{}`)
	gone := stranger.post(t, none+capture, `{}`)
	if mine.body != strings.ReplaceAll(gone.body, none, authorized) {
		t.Errorf("%s\n%s", mine.body, gone.body)
	}
}

func TestMalformedCommandsLeaveNothing(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	authorized, completed := c.held(t, from, to, 100, 86400), c.paid(t, from, to, 100)
	before := a.content(t, "")

	for _, k := range []struct {
		body    string
		status  int
		code    string
		headers []string
	}{
		{"", 400, "malformed-json", nil},
		{"null", 400, "malformed-json", nil},
		{`{"a":1,"a":1}`, 400, "duplicate-member", nil},
		{`{"currency":"USD"}`, 422, "unknown-field", nil},
		{`{"amount_minor":1,"currency":"EUR"}`, 422, "unknown-field", nil},
		{`{"status":"completed"}`, 422, "unknown-field", nil},
		{`{}`, 400, "idempotency-key-missing", []string{"Idempotency-Key", ""}},
		{`{}`, 400, "idempotency-key-missing", []string{"Idempotency-Key", "", "If-Match", "x"}}, // the key comes first
		{`{}`, 415, "unsupported-media-type", []string{"Content-Type", "text/plain"}},
		{"", 400, "if-match-invalid", []string{"If-Match", "1"}}, // before the body
	} {
		for _, path := range []string{authorized + capture, authorized + cancel, completed + refunds} {
			c.post(t, path, k.body, k.headers...).is(t, k.status, k.code)
		}
	}
	for _, amount := range []string{"0", "-0", "-1", "1.5", "1.0", "1e2", `"1"`, "null", "true", "1000000000001", "9223372036854775808"} {
		for _, path := range []string{authorized + capture, completed + refunds} {
			c.post(t, path, `{"amount_minor":`+amount+`}`).is(t, 422, "invalid-amount")
		}
		c.post(t, authorized+cancel, `{"amount_minor":`+amount+`}`).is(t, 422, "unknown-field")
	}
	for _, path := range []string{authorized + capture, completed + refunds} {
		c.post(t, path, `{"amount":1}`).is(t, 422, "invalid-amount")
		c.post(t, path+"?x=1", `{}`).is(t, 400, "invalid-query")
	}
	for _, body := range []string{`{"reason":null}`, `{"reason":"\u001b"}`, `{"reason":"` + strings.Repeat("é", 501) + `"}`, `{"metadata":{"a":1}}`} {
		c.post(t, completed+refunds, body).is(t, 422, "invalid-field")
	}
	if p := c.post(t, completed+refunds, `{"amount_minor":0,"reason":1,"x":1}`).is(t, 422, "unknown-field"); len(p.Errors) != 3 {
		t.Errorf("told one by one: %+v", p)
	}
	for _, tag := range []string{"1", `W/"1"`, `w/"1"`, `"1","1"`, `"1", "2"`, `*,"1"`, `"0"`, `"01"`, `"-1"`, `"+1"`, `" 1"`, `""`, `"`, `"1`, `1"`, `""1""`, "**", `"*"`, `"9223372036854775808"`, `"x"`} {
		for _, path := range []string{authorized + capture, authorized + cancel, completed + refunds} {
			c.post(t, path, `{}`, "If-Match", tag).is(t, 400, "if-match-invalid")
		}
	}
	for _, id := range []string{"1", "'--", strings.ToUpper("a" + authorized[len("/api/v1/payments/")+1:]), "urn:uuid:" + uuid.NewString(), "%2F", strings.Replace(authorized[len("/api/v1/payments/"):], "-", "%2D", 1)} {
		for _, path := range []string{capture, cancel, refunds} {
			got := c.post(t, "/api/v1/payments/"+id+path, `{}`)
			if got.is(t, 404, "not-found"); got.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("%s: what is no id is stored", id)
			}
		}
	}
	if diff := cmp.Diff(before, a.content(t, "")); diff != "" {
		t.Error(diff)
	}
}

func TestIfMatchGuardsAndRepeatsGetTheirAnswer(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	held := c.held(t, from, to, 100, 86400)
	read := c.get(t, held)
	if read.header.Get("ETag") != `"1"` {
		t.Fatalf("ETag %s", read.header.Get("ETag"))
	}

	first := c.post(t, held+capture, `{"amount_minor":70}`, "Idempotency-Key", "k", "If-Match", read.header.Get("ETag"))
	first.wantStatus(t, http.StatusOK)
	if first.header.Get("Location") != "" {
		t.Errorf("a capture makes nothing: %s", first.header.Get("Location"))
	}
	// The capture made it version 2, and its repeat is still answered.
	again := c.post(t, held+capture, `{"amount_minor":70}`, "Idempotency-Key", "k", "If-Match", `"1"`)
	if again.status != 200 || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%d %s", again.status, again.body)
	}
	c.post(t, held+refunds, `{}`, "If-Match", `"1"`).is(t, 412, "version-mismatch")
	c.post(t, held+refunds, `{"amount_minor":20}`, "If-Match", `"2"`).wantStatus(t, http.StatusCreated)
	if tag := c.get(t, held).header.Get("ETag"); tag != `"3"` {
		t.Errorf("ETag %s", tag)
	}

	// Path and version belong to the request.
	other := c.held(t, from, to, 100, 86400)
	for _, changed := range []answer{
		c.post(t, other+capture, `{"amount_minor":70}`, "Idempotency-Key", "k", "If-Match", `"1"`),
		c.post(t, held+refunds, `{"amount_minor":70}`, "Idempotency-Key", "k", "If-Match", `"1"`),
		c.post(t, held+capture, `{"amount_minor":70}`, "Idempotency-Key", "k", "If-Match", `"2"`),
		c.post(t, held+capture, `{"amount_minor":70}`, "Idempotency-Key", "k"),
		c.post(t, held+capture, `{}`, "Idempotency-Key", "k", "If-Match", `"1"`),
	} {
		changed.is(t, 422, "idempotency-key-reused")
	}

	// What was never seen in a request must not tell two apart: * is no condition.
	star := c.post(t, other+cancel, `{}`, "Idempotency-Key", "star", "If-Match", "*")
	if none := c.post(t, other+cancel, `{}`, "Idempotency-Key", "star"); star.status != 200 || none.body != star.body {
		t.Errorf("%d %s", none.status, none.body)
	}
}

func TestPaymentIsReadWithItsNewestRefunds(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	paid := c.paid(t, from, to, 100)
	var made []string
	for range 23 {
		r := c.post(t, paid+refunds, `{"amount_minor":1}`)
		r.wantStatus(t, http.StatusCreated)
		if got := c.get(t, r.header.Get("Location")); got.body != r.body {
			t.Errorf("made %s, read %s", r.body, got.body)
		}
		made = append([]string{r.body}, made...)
	}
	if got := c.get(t, paid); !strings.HasSuffix(got.body, `"version":24,"refunds":[`+strings.Join(made[:20], ",")+`]}`) || got.header.Get("ETag") != `"24"` {
		t.Errorf("%s", got.body)
	}

	// The payee spends the rest, so a refund is declined, and recorded.
	c.pay(t, to, from, 77)
	declined := c.post(t, paid+refunds, `{"amount_minor":5}`)
	p := declined.is(t, 402, "insufficient-funds")
	if p.Instance != paid || !strings.Contains(declined.body, `"refund_id":"`+declined.header.Get("Location")[len("/api/v1/refunds/"):]+`"`) {
		t.Errorf("%s %s", declined.header.Get("Location"), declined.body)
	}
	if got := read[payments.Refund](t, c.get(t, declined.header.Get("Location")), 200); got.Status != payments.Declined || got.PaymentVersion != 25 {
		t.Errorf("%+v", got)
	}

	for _, limit := range []string{"1", "7", "100"} {
		got := all[payments.Refund](t, c, paid+refunds, url.Values{"limit": {limit}})
		if len(got) != 24 || got[0].Status != payments.Declined {
			t.Fatalf("by %s: %d refunds", limit, len(got))
		}
		for i, r := range got {
			if r.PaymentVersion != int64(25-i) {
				t.Errorf("by %s: refund %d left version %d", limit, i, r.PaymentVersion)
			}
		}
	}
	for _, bad := range []string{"", "x", "0", "01", "-1", uuid.NewString()} {
		c.get(t, paid+refunds+"?cursor="+bad).is(t, 400, "invalid-cursor")
	}
}

func TestPaymentsAreListedByStatus(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	want := map[string][]string{"completed": {c.paid(t, from, to, 1)}, "authorized": {c.held(t, from, to, 1, 60), c.held(t, from, to, 1, 60)}}
	canceled, expired := c.held(t, from, to, 1, 86400), c.held(t, from, to, 1, 60)
	c.post(t, canceled+cancel, `{}`).wantStatus(t, 200)
	a.over(t, expired, true)
	want["canceled"], want["expired"] = []string{canceled}, []string{expired}
	want["declined"] = []string{c.post(t, "/api/v1/payments", order(from, to, 5000)).is(t, 402, "insufficient-funds").Instance}

	for status, paths := range want {
		for _, filters := range []url.Values{{}, {"account": {to}}} {
			filters.Set("status", status)
			filters.Set("limit", "1")
			var got []string
			for _, p := range all[payments.Payment](t, c, "/api/v1/payments", filters) {
				if p.DestinationAccount.String() == to { // not the one that funded
					got = append([]string{"/api/v1/payments/" + p.ID.String()}, got...)
				}
			}
			if diff := cmp.Diff(paths, got); diff != "" {
				t.Errorf("%v: %s", filters, diff)
			}
		}
	}
	for _, bad := range []string{"", "Completed", "pending", "completed,declined"} {
		if p := c.get(t, "/api/v1/payments?status="+bad).is(t, 400, "invalid-query"); p.Errors[0].Parameter != "status" {
			t.Errorf("%+v", p)
		}
	}
	if got := read[payments.Account](t, c.get(t, "/api/v1/accounts/"+from), 200); got.HeldMinor != 2 {
		t.Errorf("held: %d", got.HeldMinor)
	}
}

// The rule by which a repeat is known, golden for the whole of a command: route, payment, version and body.
func TestFingerprintOfACommandIsTheSameForever(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	held := c.held(t, c.funded(t, 1000), c.account(t), 100, 86400)
	id := held[len("/api/v1/payments/"):]
	c.post(t, held+capture, ` { "amount_minor" : 70 }`, "If-Match", `"1"`).wantStatus(t, 200)
	c.post(t, held+refunds, `{"metadata":{"b":"2","a":"1"},"reason":"r","amount_minor":3}`).wantStatus(t, 201)

	var stored [][]byte
	var routes []string
	a.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT array_agg(fingerprint ORDER BY version), array_agg(route ORDER BY version) FROM payment_commands`).Scan(&stored, &routes)
	})
	for i, want := range []idempotency.Fingerprint{
		idempotency.NewFingerprint(c.tenant, "POST", "/api/v1/payments/{id}/capture", []string{id, "1"}, []byte(`{"amount_minor":70}`)),
		idempotency.NewFingerprint(c.tenant, "POST", "/api/v1/payments/{id}/refunds", []string{id}, []byte(`{"amount_minor":3,"reason":"r","metadata":{"a":"1","b":"2"}}`)),
	} {
		if string(stored[i]) != string(want.Sum[:]) {
			t.Errorf("%s: the fingerprint changed", routes[i])
		}
	}
}

func TestOverflowNamesThePayment(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	held := c.held(t, from, to, 100, 86400)
	a.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE accounts SET balance_minor = 9223372036854775807 WHERE id = $1`, to)
		return err
	})
	got := c.post(t, held+capture, `{}`)
	if p := got.is(t, 422, "amount-out-of-range"); p.Instance != held || !strings.Contains(p.Detail, to) || !strings.Contains(got.body, `"payment_status":"authorized","payment_version":1`) {
		t.Errorf("%s", got.body)
	}
}

// The demo lets authorizations end within seconds.
func TestShortestAuthorizationIsTheOperators(t *testing.T) {
	t.Parallel()
	a := start(t, func(o *httpapi.Options) { o.AuthorizationMin = 1500 * time.Millisecond })
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	got := read[payments.Payment](t, c.get(t, c.held(t, from, to, 1, 2)), 200)
	if length := got.AuthorizationExpiresAt.Sub(got.ProcessedAt); length != 2*time.Second {
		t.Errorf("it lasts %v", length)
	}
	c.post(t, "/api/v1/payments", strings.TrimSuffix(order(from, to, 1), "}")+`,"capture":"manual","authorization_seconds":1}`).is(t, 422, "invalid-field")
	got = read[payments.Payment](t, c.post(t, "/api/v1/payments", strings.TrimSuffix(order(from, to, 1), "}")+`,"capture":"manual"}`), 201)
	if length := got.AuthorizationExpiresAt.Sub(got.ProcessedAt); length != 7*24*time.Hour {
		t.Errorf("it lasts %v", length)
	}
}

package httpapi_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
)

// replaced is a valid payment with one member written otherwise; an empty value takes it away.
func replaced(name, json string) string {
	members := []string{}
	for _, m := range [][2]string{
		{"amount_minor", "25000"}, {"currency", `"USD"`}, {"source_account", `"` + source + `"`}, {"destination_account", `"` + destination + `"`},
		{"description", `"d"`}, {"metadata", `{"k":"v"}`}, {"client_reference", `"r"`},
	} {
		if m[0] == name {
			if m[1] = json; json == "" {
				continue
			}
		}
		members = append(members, fmt.Sprintf("%q:%s", m[0], m[1]))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// extended is a valid payment with one more member.
func extended(member string) string {
	return strings.TrimSuffix(replaced("", ""), "}") + "," + member + "}"
}

func TestBadInputIsRefusedAndStoresNothing(t *testing.T) {
	t.Parallel()
	a := start(t, func(o *httpapi.Options) {
		o.Submit = func(_ context.Context, r payments.Request) (idempotency.Answer, error) {
			t.Errorf("%+v was submitted", r.Command)
			return idempotency.Answer{}, io.ErrUnexpectedEOF
		}
	})
	many := func(n int, format string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(all, ",")
	}
	for _, c := range []struct {
		name, body string
		status     int
		code       string
		headers    []string
	}{
		{name: "empty", body: "", status: 400, code: "malformed-json"},
		{name: "blank", body: " \n", status: 400, code: "malformed-json"},
		{name: "truncated", body: `{"amount_minor":`, status: 400, code: "malformed-json"},
		{name: "not JSON", body: `amount=1`, status: 400, code: "malformed-json"},
		{name: "trailing bytes", body: replaced("", "") + "x", status: 400, code: "malformed-json"},
		{name: "two objects", body: "{}{}", status: 400, code: "malformed-json"},
		{name: "byte order mark", body: "\ufeff" + replaced("", ""), status: 400, code: "malformed-json"},
		{name: "UTF-16", body: "\xff\xfe{\x00}\x00", status: 400, code: "malformed-json"},
		{name: "UTF-16 without a mark", body: "{\x00}\x00", status: 400, code: "malformed-json"},
		{name: "array", body: "[]", status: 400, code: "malformed-json"},
		{name: "null", body: "null", status: 400, code: "malformed-json"},
		{name: "scalar", body: `"x"`, status: 400, code: "malformed-json"},
		{name: "deep", body: extended(`"x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32)), status: 400, code: "malformed-json"},
		{name: "deep enough", body: extended(`"x":` + strings.Repeat("[", 31) + strings.Repeat("]", 31)), status: 422, code: "unknown-field"},
		{name: "many tokens", body: extended(`"x":[` + many(1000, "%d") + `]`), status: 400, code: "malformed-json"},
		{name: "raw control", body: replaced("description", "\"a\nb\""), status: 400, code: "malformed-json"},
		{name: "leading zero", body: replaced("amount_minor", "01"), status: 400, code: "malformed-json"},
		{name: "NaN", body: replaced("amount_minor", "NaN"), status: 400, code: "malformed-json"},

		{name: "invalid UTF-8", body: replaced("description", "\"\xff\""), status: 400, code: "invalid-encoding"},
		{name: "surrogate in UTF-8", body: replaced("description", "\"\xed\xa0\x80\""), status: 400, code: "invalid-encoding"},
		{name: "lone high surrogate", body: replaced("description", `"\ud83dx"`), status: 400, code: "invalid-encoding"},
		{name: "two high surrogates", body: replaced("description", `"\ud83d\ud83d"`), status: 400, code: "invalid-encoding"},
		{name: "lone low surrogate", body: replaced("description", `"\ude00"`), status: 400, code: "invalid-encoding"},
		{name: "U+0000 escaped", body: replaced("description", `"\u0000"`), status: 400, code: "invalid-encoding"},
		{name: "U+0000 raw", body: replaced("description", "\"\x00\""), status: 400, code: "invalid-encoding"},
		{name: "U+0000 in a name", body: extended(`"\u0000":1`), status: 400, code: "invalid-encoding"},

		{name: "duplicate member", body: extended(`"amount_minor":1`), status: 400, code: "duplicate-member"},
		{name: "duplicate member escaped", body: extended(`"\u0061mount_minor":1`), status: 400, code: "duplicate-member"},
		{name: "duplicate in metadata", body: replaced("metadata", `{"a":"1","a":"1"}`), status: 400, code: "duplicate-member"},
		{name: "unknown member", body: extended(`"status":"completed"`), status: 422, code: "unknown-field"},
		{name: "other case", body: extended(`"Currency":"USD"`), status: 422, code: "unknown-field"},
		{name: "other case instead", body: strings.Replace(replaced("", ""), `"currency"`, `"CURRENCY"`, 1), status: 422, code: "unknown-field"},

		{name: "float", body: replaced("amount_minor", "1.5"), status: 422, code: "invalid-amount"},
		{name: "1.0", body: replaced("amount_minor", "1.0"), status: 422, code: "invalid-amount"},
		{name: "1e2", body: replaced("amount_minor", "1e2"), status: 422, code: "invalid-amount"},
		{name: "amount as string", body: replaced("amount_minor", `"100"`), status: 422, code: "invalid-amount"},
		{name: "amount null", body: replaced("amount_minor", "null"), status: 422, code: "invalid-amount"},
		{name: "amount true", body: replaced("amount_minor", "true"), status: 422, code: "invalid-amount"},
		{name: "amount missing", body: replaced("amount_minor", ""), status: 422, code: "invalid-amount"},
		{name: "-1", body: replaced("amount_minor", "-1"), status: 422, code: "invalid-amount"},
		{name: "0", body: replaced("amount_minor", "0"), status: 422, code: "invalid-amount"},
		{name: "-0", body: replaced("amount_minor", "-0"), status: 422, code: "invalid-amount"},
		{name: "over the limit", body: replaced("amount_minor", "1000000000001"), status: 422, code: "invalid-amount"},
		{name: "over int64", body: replaced("amount_minor", "9223372036854775808"), status: 422, code: "invalid-amount"},
		{name: "amount", body: strings.Replace(replaced("", ""), "amount_minor", "amount", 1), status: 422, code: "invalid-amount"},

		{name: "unknown currency", body: replaced("currency", `"XXX"`), status: 422, code: "invalid-currency"},
		{name: "lower case currency", body: replaced("currency", `"usd"`), status: 422, code: "invalid-currency"},
		{name: "long currency", body: replaced("currency", `"USDT"`), status: 422, code: "invalid-currency"},
		{name: "empty currency", body: replaced("currency", `""`), status: 422, code: "invalid-currency"},
		{name: "currency null", body: replaced("currency", "null"), status: 422, code: "invalid-field"},
		{name: "currency missing", body: replaced("currency", ""), status: 422, code: "invalid-field"},

		{name: "account missing", body: replaced("source_account", ""), status: 422, code: "invalid-field"},
		{name: "account as number", body: replaced("source_account", "1"), status: 422, code: "invalid-field"},
		{name: "account no UUID", body: replaced("source_account", `"x"`), status: 422, code: "invalid-field"},
		{name: "account in capitals", body: replaced("source_account", `"01890000-0000-7000-8000-00000000000A"`), status: 422, code: "invalid-field"},
		{name: "account as URN", body: replaced("source_account", `"urn:uuid:`+source+`"`), status: 422, code: "invalid-field"},
		{name: "same account", body: replaced("destination_account", `"`+source+`"`), status: 422, code: "same-account"},

		{name: "description null", body: replaced("description", "null"), status: 422, code: "invalid-field"},
		{name: "description long", body: replaced("description", `"`+strings.Repeat("é", 501)+`"`), status: 422, code: "invalid-field"},
		{name: "description with escape", body: replaced("description", `"\u001b[31m"`), status: 422, code: "invalid-field"},
		{name: "description with carriage return", body: replaced("description", `"\r"`), status: 422, code: "invalid-field"},
		{name: "reference long", body: replaced("client_reference", `"`+strings.Repeat("x", 256)+`"`), status: 422, code: "invalid-field"},
		{name: "reference with line feed", body: replaced("client_reference", `"a\nb"`), status: 422, code: "invalid-field"},
		{name: "metadata array", body: replaced("metadata", "[]"), status: 422, code: "invalid-field"},
		{name: "metadata null", body: replaced("metadata", "null"), status: 422, code: "invalid-field"},
		{name: "metadata of numbers", body: replaced("metadata", `{"a":1}`), status: 422, code: "invalid-field"},
		{name: "metadata nested", body: replaced("metadata", `{"a":{}}`), status: 422, code: "invalid-field"},
		{name: "metadata many", body: replaced("metadata", "{"+many(21, `"k%d":""`)+"}"), status: 422, code: "invalid-field"},
		{name: "metadata key long", body: replaced("metadata", `{"`+strings.Repeat("k", 41)+`":""}`), status: 422, code: "invalid-field"},
		{name: "metadata key empty", body: replaced("metadata", `{"":""}`), status: 422, code: "invalid-field"},
		{name: "metadata value long", body: replaced("metadata", `{"k":"`+strings.Repeat("v", 501)+`"}`), status: 422, code: "invalid-field"},

		{name: "key missing", body: replaced("", ""), headers: []string{"Idempotency-Key", ""}, status: 400, code: "idempotency-key-missing"},
		{name: "key list", body: replaced("", ""), headers: []string{"Idempotency-Key", "a, b"}, status: 400, code: "idempotency-key-invalid"},
		{name: "key parameters", body: replaced("", ""), headers: []string{"Idempotency-Key", `"a";b=1`}, status: 400, code: "idempotency-key-invalid"},
		{name: "key empty", body: replaced("", ""), headers: []string{"Idempotency-Key", `""`}, status: 400, code: "idempotency-key-invalid"},
		{name: "key long", body: replaced("", ""), headers: []string{"Idempotency-Key", strings.Repeat("k", 256)}, status: 400, code: "idempotency-key-invalid"},
		{name: "key not ASCII", body: replaced("", ""), headers: []string{"Idempotency-Key", "k\xff"}, status: 400, code: "idempotency-key-invalid"},

		{name: "no media type", body: replaced("", ""), headers: []string{"Content-Type", ""}, status: 415, code: "unsupported-media-type"},
		{name: "other media type", body: replaced("", ""), headers: []string{"Content-Type", "text/plain"}, status: 415, code: "unsupported-media-type"},
		{name: "other charset", body: replaced("", ""), headers: []string{"Content-Type", "application/json; charset=latin1"}, status: 415, code: "unsupported-media-type"},
		{name: "compressed", body: replaced("", ""), headers: []string{"Content-Encoding", "gzip"}, status: 415, code: "unsupported-media-type"},
		{name: "large", body: replaced("description", `"`+strings.Repeat("x", 64<<10)+`"`), status: 413, code: "body-too-large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := a.caller.post(t, "/api/v1/payments", c.body, append([]string{"X-Request-Id", "r-" + strings.ReplaceAll(c.code, "_", "-")}, c.headers...)...)
			p := got.is(t, c.status, c.code)
			if c.status == http.StatusUnprocessableEntity && len(p.Errors) == 0 {
				t.Error("no errors[]")
			}
			if wellFormed := !strings.HasPrefix(c.code, "idempotency-key"); wellFormed != (got.header.Get("Idempotency-Key") != "") {
				t.Errorf("Idempotency-Key echoed: %q", got.header.Get("Idempotency-Key"))
			}
		})
	}

	t.Run("all wrong fields are reported at once", func(t *testing.T) {
		p := a.caller.post(t, "/api/v1/payments", `{"amount":"250.00","currency":"usd","source_account":"x","metadata":{"a/b~c d":1},"sum":1}`).is(t, 422, "unknown-field")
		got := []string{}
		for _, e := range p.Errors {
			got = append(got, e.Pointer+" "+e.Code)
		}
		want := "#/sum unknown-field|#/amount invalid-amount|#/currency invalid-currency|#/source_account invalid-field|#/destination_account invalid-field|#/metadata/a~1b~0c%20d invalid-field"
		if strings.Join(got, "|") != want {
			t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), want)
		}
	})
	t.Run("amount explains minor units", func(t *testing.T) {
		p := a.caller.post(t, "/api/v1/payments", strings.Replace(replaced("", ""), `"amount_minor":25000`, `"amount":250.00`, 1)).is(t, 422, "invalid-amount")
		if !strings.Contains(p.Detail, "250.00 USD") || !strings.Contains(p.Detail, "25000") || len(p.Errors) != 1 {
			t.Errorf("%+v", p)
		}
	})
	t.Run("query on a POST", func(t *testing.T) {
		a.caller.post(t, "/api/v1/payments?x=1", replaced("", "")).is(t, 400, "invalid-query")
		a.caller.post(t, "/api/v1/payments?", replaced("", "")).is(t, 400, "invalid-query")
	})
	t.Run("body of unknown length over the limit closes the connection", func(t *testing.T) {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, a.URL+"/api/v1/payments", io.MultiReader(bytes.NewReader(make([]byte, 65<<10))))
		r.Header = http.Header{"Authorization": {"Bearer " + a.caller.token}, "Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
		got := send(t, a, r)
		got.is(t, 413, "body-too-large")
	})
	t.Run("two key headers, two media types", func(t *testing.T) {
		for name, code := range map[string]string{"Idempotency-Key": "idempotency-key-invalid", "Content-Type": "unsupported-media-type"} {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, a.URL+"/api/v1/payments", strings.NewReader(replaced("", "")))
			r.Header = http.Header{"Authorization": {"Bearer " + a.caller.token}, "Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
			r.Header.Add(name, r.Header.Get(name))
			if p := send(t, a, r).problem(t); p.Code != code {
				t.Errorf("two %s: %+v", name, p)
			}
		}
	})
	t.Run("accounts", func(t *testing.T) {
		for body, code := range map[string]string{
			`{}`:                                 "invalid-field",
			`{"currency":"usd"}`:                 "invalid-currency",
			`{"currency":"USD","kind":"system"}`: "unknown-field",
			`{"currency":"USD","name":"` + strings.Repeat("n", 101) + `"}`: "invalid-field",
			`{"currency":"USD","name":"a\nb"}`:                             "invalid-field",
		} {
			a.caller.post(t, "/api/v1/accounts", body).is(t, 422, code)
		}
	})
	t.Run("nothing was stored", func(t *testing.T) {
		var n int
		a.tx(t, func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT count(*) FROM idempotency_keys`).Scan(&n)
		})
		if n != 0 {
			t.Errorf("%d keys", n)
		}
	})
}

// An answer that grows with what a client sends would make a small request a large one.
func TestRefusalsStaySmall(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	long := strings.Repeat(`\u0001`, 10_000)
	var many, parameters []string
	for i := range 450 {
		many = append(many, fmt.Sprintf(`"m%d":1`, i))
		parameters = append(parameters, fmt.Sprintf("p%d=", i))
	}

	for name, body := range map[string]string{
		"long name":             `{"` + long + `":1}`,
		"long name of a pair":   `{"metadata":{"` + long + `":1}}`,
		"long name twice":       `{"` + long + `":1,"` + long + `":1}`,
		"many names":            "{" + strings.Join(many, ",") + "}",
		"many names of 64 KiB":  `{"` + strings.Join(many, `","`+strings.Repeat("é", 20)) + `"`,
		"long name, percents %": `{"` + strings.Repeat("%", 60_000) + `":1}`,
	} {
		got := a.caller.post(t, "/api/v1/payments", body)
		if p := got.problem(t); got.status/100 != 4 || len(got.body) > 16<<10 || len(p.Errors) > 50 {
			t.Errorf("%s: %d, %d bytes, %d errors", name, got.status, len(got.body), len(p.Errors))
		}
	}

	for name, query := range map[string]string{
		"long parameter":  strings.Repeat("%01", 4000) + "=1",
		"many parameters": strings.Join(parameters, "&"),
	} {
		got := a.caller.get(t, "/api/v1/payments?"+query)
		if p := got.is(t, 400, "invalid-query"); len(got.body) > 16<<10 || len(p.Errors) > 50 {
			t.Errorf("%s: %d bytes, %d errors", name, len(got.body), len(p.Errors))
		}
	}

	// "&" takes six bytes in JSON.
	got := a.caller.get(t, "/"+strings.Repeat("&", 12_000))
	if p := got.is(t, 404, "not-found"); len(got.body) > 16<<10 || p.Instance != "/" {
		t.Errorf("long path: %d bytes, instance %.20s", len(got.body), p.Instance)
	}
}

func TestLongNamesAreCut(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	for name, want := range map[string]string{
		strings.Repeat("é", 64): strings.Repeat("é", 64),
		strings.Repeat("é", 65): strings.Repeat("é", 64) + "…",
	} {
		p := a.caller.post(t, "/api/v1/accounts", `{"currency":"USD","`+name+`":1}`).is(t, 422, "unknown-field")
		if pointer, _ := url.PathUnescape(p.Errors[0].Pointer); pointer != "#/"+want || !strings.Contains(p.Detail, `"`+want+`"`) {
			t.Errorf("%d characters: %s, %s", utf8.RuneCountInString(name), pointer, p.Detail)
		}
		p = a.caller.get(t, "/api/v1/payments?"+name+"=1").is(t, 400, "invalid-query")
		if p.Errors[0].Parameter != want {
			t.Errorf("%s", p.Errors[0].Parameter)
		}
	}
}

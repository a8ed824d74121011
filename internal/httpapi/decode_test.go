package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/payments"
)

const (
	source      = "01890000-0000-7000-8000-000000000001"
	destination = "01890000-0000-7000-8000-000000000002"
)

func TestCanonicalBytesIgnoreWhiteSpaceAndOrder(t *testing.T) {
	t.Parallel()
	// The golden bytes. Changing them turns repeats in flight into 422, so raise the fingerprint's
	// version with them.
	const want = `{"amount_minor":25000,"currency":"USD","source_account":"` + source + `","destination_account":"` + destination +
		`","description":"<é>","metadata":{"a":"1","b":"2"},"client_reference":"r"}`
	for _, body := range []string{
		`{"amount_minor":25000,"currency":"USD","source_account":"` + source + `","destination_account":"` + destination +
			`","description":"<é>","metadata":{"a":"1","b":"2"},"client_reference":"r"}`,
		` { "client_reference" : "\u0072", "metadata" : {"b":"2",
		"a":"1"}, "description":"\u003c\u00e9>", "destination_account":"` + destination + `","source_account":"` + source + `","currency":"USD","amount_minor":25000}` + "\r\n",
	} {
		_, canonical, err := httpapi.DecodePayment(payments.Target{}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		var got, golden any
		_, _ = json.Unmarshal(canonical, &got), json.Unmarshal([]byte(want), &golden)
		if diff := cmp.Diff(golden, got); diff != "" {
			t.Error(diff)
		}
		if strings.ReplaceAll(strings.ReplaceAll(string(canonical), `\u003c`, "<"), `\u003e`, ">") != want {
			t.Errorf("canonical bytes are %s", canonical)
		}
	}
	_, canonical, err := httpapi.DecodePayment(payments.Target{}, []byte(`{"amount_minor":1,"currency":"JPY","source_account":"`+source+`","destination_account":"`+destination+`","description":"","metadata":{}}`))
	if want := `{"amount_minor":1,"currency":"JPY","source_account":"` + source + `","destination_account":"` + destination + `"}`; err != nil || string(canonical) != want {
		t.Errorf("absent and empty are one: got %s, %v", canonical, err)
	}
	_, canonical, err = httpapi.DecodePayment(payments.Target{}, []byte(`{"payment_method":{"token":"tok_visa","type":"card"},"currency":"JPY","amount_minor":1,"destination_account":"`+destination+`"}`))
	if want := `{"amount_minor":1,"currency":"JPY","destination_account":"` + destination + `","payment_method":{"type":"card","token":"tok_visa"}}`; err != nil || string(canonical) != want {
		t.Errorf("by card: got %s, %v", canonical, err)
	}
	_, canonical, err = httpapi.DecodeAccount(payments.Target{}, []byte(`{"name":"till","currency":"KWD"}`))
	if want := `{"currency":"KWD","name":"till"}`; err != nil || string(canonical) != want {
		t.Errorf("account: got %s, %v", canonical, err)
	}
}

// Golden, as above.
func TestCanonicalBytesOfTheLifeOfAPayment(t *testing.T) {
	t.Parallel()
	payment := `{"amount_minor":1,"currency":"JPY","source_account":"` + source + `","destination_account":"` + destination + `"`
	for _, c := range []struct {
		decode     func(payments.Target, []byte) (payments.Command, []byte, error)
		body, want string
	}{
		{httpapi.DecodePayment, payment + `,"capture":"automatic"}`, payment + `}`},
		{httpapi.DecodePayment, payment + `,"capture":"manual"}`, payment + `,"capture":"manual","authorization_seconds":604800}`},
		{httpapi.DecodePayment, `{"authorization_seconds":60,"capture":"manual",` + payment[1:] + `}`, payment + `,"capture":"manual","authorization_seconds":60}`},
		{httpapi.DecodeCapture, ` { } `, `{}`},
		{httpapi.DecodeCapture, `{ "amount_minor" : 25000 }`, `{"amount_minor":25000}`},
		{httpapi.DecodeCancel, "{\n}", `{}`},
		{httpapi.DecodeRefund, `{"reason":"","metadata":{}}`, `{}`},
		{httpapi.DecodeRefund, `{"metadata":{"b":"2","a":"1"},"reason":"\u0072","amount_minor":1}`, `{"amount_minor":1,"reason":"r","metadata":{"a":"1","b":"2"}}`},
	} {
		if _, got, err := c.decode(payments.Target{}, []byte(c.body)); err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.body, got, err, c.want)
		}
	}
}

func TestCommandsCarryTheirTarget(t *testing.T) {
	t.Parallel()
	target := payments.Target{PaymentID: uuid.MustParse(source), IfVersion: 3}
	for _, c := range []struct {
		decode func(payments.Target, []byte) (payments.Command, []byte, error)
		want   payments.Command
	}{
		{httpapi.DecodeCapture, payments.CapturePayment{Target: target}},
		{httpapi.DecodeCancel, payments.CancelPayment{Target: target}},
		{httpapi.DecodeRefund, payments.RefundPayment{Target: target, Metadata: map[string]string{}}},
	} {
		got, _, err := c.decode(target, []byte(`{}`))
		if diff := cmp.Diff(c.want, got); diff != "" || err != nil {
			t.Errorf("%s, %v", diff, err)
		}
	}
}

func TestIfMatchIsOneVersionOrAny(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines []string
		want  int64
	}{
		{nil, 0}, {[]string{"*"}, 0}, {[]string{" * "}, 0}, {[]string{`"1"`}, 1}, {[]string{` "42"	`}, 42}, {[]string{`"9223372036854775807"`}, 1<<63 - 1},
	} {
		if got, err := httpapi.IfMatch(http.Header{"If-Match": c.lines}); got != c.want || err != nil {
			t.Errorf("%q: %d, %v", c.lines, got, err)
		}
	}
	for _, lines := range [][]string{{""}, {`"1"`, `"1"`}, {"*", "*"}, {`"1",`}, {`W/*`}, {`"1`}, {`"١"`}, {"\"1\"\n"}} {
		if got, err := httpapi.IfMatch(http.Header{"If-Match": lines}); err == nil || httpapi.Code(err) != "if-match-invalid" {
			t.Errorf("%q: %d, %v", lines, got, err)
		}
	}
}

// What is accepted is written in one way only.
func FuzzIfMatch(f *testing.F) {
	for _, seed := range []string{"*", `"1"`, `W/"1"`, `"1","2"`, `"01"`, "1", `"`, ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, tag string) {
		version, err := httpapi.IfMatch(http.Header{"If-Match": {tag}})
		bare := strings.Trim(tag, " \t")
		switch {
		case err != nil && httpapi.Code(err) != "if-match-invalid":
			t.Errorf("%q: %v", tag, err)
		case err == nil && bare != "*" && bare != fmt.Sprintf("%q", fmt.Sprint(version)):
			t.Errorf("%q is taken for %d", tag, version)
		}
	})
}

// Canonical bytes decode to themselves, and every other body gets a refusal.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{}`, `[]`, ``, `{"a":1,"a":2}`, `{"a":[1,-0.5e+3,true,false,null,"x",{}]}`, `{"a":"\ud83d\ude00"}`, `{"a":"\ud83d"}`,
		"{\"a\":\"\xff\"}", `{"a":"\u0000"}`, "\ufeff{}", `{"a":01}`, `{"a":1}x`, strings.Repeat(`{"a":`, 40), `{"a":"\"\\\/\b\f\n\r\t"}`,
		`{"amount_minor":25000,"currency":"USD","source_account":"` + source + `","destination_account":"` + destination + `","metadata":{"k":"v"}}`,
		`{"amount_minor":25000,"currency":"USD","source_account":"` + source + `","destination_account":"` + destination + `","capture":"manual","authorization_seconds":60}`,
		`{"amount_minor":1}`, `{"amount":1}`, `{"amount_minor":1,"reason":"r","metadata":{"k":"v"}}`, `{"capture":"manual"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, decode := range map[string]func(payments.Target, []byte) (payments.Command, []byte, error){
			"payment": httpapi.DecodePayment, "account": httpapi.DecodeAccount,
			"capture": httpapi.DecodeCapture, "cancel": httpapi.DecodeCancel, "refund": httpapi.DecodeRefund,
		} {
			command, canonical, err := decode(payments.Target{}, body)
			if err != nil {
				if httpapi.Code(err) == "internal" {
					t.Errorf("%s: %v is not a problem of the body", name, err)
				}
				continue
			}
			same, again, err := decode(payments.Target{}, canonical)
			if err != nil || string(again) != string(canonical) || !cmp.Equal(command, same) {
				t.Errorf("%s: canonical bytes %s are read as %s, %v", name, canonical, again, err)
			}
		}
	})
}

func TestPreferWaitFollowsRFC7240(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines []string
		want  time.Duration
		asked bool
	}{
		{nil, 0, false},
		{[]string{"wait=2"}, 2 * time.Second, true},
		{[]string{"respond-async, Wait = \"3\"; foo"}, 3 * time.Second, true},
		{[]string{"respond-async", "wait=1, wait=4"}, time.Second, true},
		{[]string{"wait=0"}, 0, true},
		{[]string{"wait=60"}, 5 * time.Second, true},
		{[]string{"wait=99999999999999999999"}, 5 * time.Second, true},
		{[]string{"wait"}, 0, false},
		{[]string{"wait="}, 0, false},
		{[]string{"wait=-1"}, 0, false},
		{[]string{"wait=+1"}, 0, false},
		{[]string{"wait=1.5"}, 0, false},
		{[]string{`wait="`}, 0, false},
	} {
		got, asked := httpapi.PreferredWait(http.Header{"Prefer": c.lines})
		if got != c.want || asked != c.asked {
			t.Errorf("%q: %v, %v", c.lines, got, asked)
		}
	}
}

func TestRateIsPerClientInBoundedMemory(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	l := httpapi.NewLimits(2, func() time.Time { return now })
	a, b := uuid.New(), uuid.New()
	for range 2 {
		if l.Take(a) != 0 {
			t.Fatal("a burst of one second is refused")
		}
	}
	if got := l.Take(a); got != 500*time.Millisecond {
		t.Errorf("refused for %v, want 500ms", got)
	}
	if l.Take(b) != 0 {
		t.Error("another client is limited as well")
	}
	l.GiveBack(a)
	if l.Take(a) != 0 {
		t.Error("a returned token is not available")
	}
	now = now.Add(500 * time.Millisecond)
	if l.Take(a) != 0 || l.Take(a) == 0 {
		t.Error("half a second is one token")
	}
	for range httpapi.MaxClients + 10 {
		l.Take(uuid.New())
	}
	if l.Len() > httpapi.MaxClients {
		t.Errorf("%d clients are remembered", l.Len())
	}
}

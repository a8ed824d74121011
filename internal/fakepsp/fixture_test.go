package fakepsp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/fakepsp"
)

const (
	apiKey = "psp_test"
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	soon   = 20 * time.Second
)

// open opens a provider until the test ends.
func open(t testing.TB, dir string, o fakepsp.Options) *fakepsp.PSP {
	t.Helper()
	o.APIKey = apiKey
	p, err := fakepsp.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func withFaults(t *testing.T, f fakepsp.Faults) *fakepsp.PSP {
	t.Helper()
	return open(t, t.TempDir(), fakepsp.Options{Faults: f})
}

// answer is what a call got. Status 0: the connection was closed without one.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// call calls the handler directly, as a net/http server would.
func call(p *fakepsp.PSP, method, path, key, body string) answer {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+apiKey)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return serve(p, r)
}

func serve(p *fakepsp.PSP, r *http.Request) (a answer) {
	w := httptest.NewRecorder()

	defer func() {
		switch aborted := recover(); aborted {
		case nil:
			a = answer{w.Code, w.Header(), w.Body.String()}
		case http.ErrAbortHandler:
		default:
			panic(aborted)
		}
	}()
	p.ServeHTTP(w, r)
	return a
}

func charge(p *fakepsp.PSP, key string) answer { return chargeToken(p, key, "tok_visa") }

func chargeToken(p *fakepsp.PSP, key, token string) answer {
	return call(p, "POST", "/v1/charges", key, order(2500, token, "operation of "+key))
}

func order(amount int, token, operation string) string {
	return fmt.Sprintf(
		`{"amount":%d,"currency":"usd","payment_method":%q,"metadata":{"operation_id":%q}}`,
		amount, token, operation)
}

func refund(p *fakepsp.PSP, key, charge string, amount int) answer {
	return call(p, "POST", "/v1/refunds", key,
		fmt.Sprintf(`{"charge":%q,"amount":%d,"metadata":{}}`, charge, amount))
}

// read reads JSON that must be a T.
func read[T any](t testing.TB, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

// charged returns the charge of an answer that must be one.
func charged(t testing.TB, a answer) fakepsp.Charge {
	t.Helper()
	if a.status != http.StatusCreated {
		t.Fatalf("not charged: %s", a)
	}
	return read[fakepsp.Charge](t, a.body)
}

// code returns the error code of an answer that must be an error.
func code(t testing.TB, a answer) string {
	t.Helper()
	return read[struct{ Error struct{ Code string } }](t, a.body).Error.Code
}

type list[T any] struct {
	Object  string
	Data    []T
	HasMore bool `json:"has_more"`
}

// found returns what a lookup by key finds.
func found(t testing.TB, p *fakepsp.PSP, key string) []fakepsp.Charge {
	t.Helper()
	return read[list[fakepsp.Charge]](t, call(p, "GET", "/v1/charges?key="+key, "", "").body).Data
}

// injected reports how often a fault must have been counted. Counts follow a moment later.
func injected(p *fakepsp.PSP, what string, want int64) error {
	if got := p.Totals().Injected[what]; got != want {
		return errors.New(what + " is " + fmt.Sprint(got) + ", want " + fmt.Sprint(want))
	}
	return nil
}

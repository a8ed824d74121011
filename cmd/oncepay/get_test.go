package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/oncepay/oncepay/internal/payments"
)

func TestGetFindsAPaymentAndElseAnAccount(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	var paid, got payments.Payment
	mustJSON(t, &paid, s.env, s.order("--amount", "2500", "--key", "order-1")...)
	mustJSON(t, &got, s.env, "get", paid.ID.String())
	if got.ID != paid.ID || got.AmountMinor != 2500 {
		t.Errorf("payment: %+v", got)
	}
	if out := must(t, s.env, "get", paid.ID.String()); !strings.Contains(out, "status     completed\n") {
		t.Errorf("payment:\n%s", out)
	}
	var account payments.Account
	mustJSON(t, &account, s.env, "get", s.Accounts[1].ID.String())
	if account.ID != s.Accounts[1].ID || account.BalanceMinor != 102_500 {
		t.Errorf("account: %+v", account)
	}
	if out := must(t, s.env, "get", s.Accounts[1].ID.String()); !strings.Contains(out, "balance    102500 USD in minor units\nheld       0 USD in minor units\navailable  102500 USD in minor units\n") {
		t.Errorf("account:\n%s", out)
	}
	declined := []string{"pay", "--from", s.Accounts[0].ID.String(), "--to", s.Accounts[1].ID.String(), "--currency", "USD", "--amount", "999999999", "--key", "dear"}
	if _, _, code := oncepay(t, s.env, declined...); code != exitRefused {
		t.Fatalf("exit %d", code)
	}
	var id string
	if err := s.db.Pool(t, "").QueryRow(t.Context(), `SELECT id FROM payments WHERE status = 'declined'`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if out := must(t, s.env, "get", id); !strings.Contains(out, "status     declined: insufficient-funds\n") {
		t.Errorf("declined:\n%s", out)
	}
	stdout, stderr, code := oncepay(t, s.env, "get", "0198a6de-5c1f-7000-8000-0123456789ab")
	if code != exitRefused || stdout != "" || !strings.HasPrefix(stderr, "oncepay: 404 not-found: ") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("nothing: exit %d, %s%s", code, stdout, stderr)
	}
}

func TestAKeySaysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if out := must(t, s.env, "key", "never/used?"); out != "key     never/used?\nstatus  unknown\n        nothing is stored under it, or no longer: a request sent with it now is a first one\n" {
		t.Errorf("unknown:\n%s", out)
	}
	must(t, s.env, s.order("--amount", "1", "--key", "order/1?")...)
	out := must(t, s.env, "key", "order/1?")
	for _, want := range []string{"status      completed\n", "answer      201\n", "resource    /api/v1/payments/", "expires     20"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	var k keyStatus
	mustJSON(t, &k, s.env, "key", `"order/1?"`)
	if k.Status != "completed" || k.Key != "order/1?" || *k.ResponseStatus != 201 {
		t.Errorf("quoted: %+v", k)
	}
}

func TestAQuestionWithoutAnAnswerIsNotARefusal(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	answer := func(status int, kind, body string) environment {
		return s.between(t, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	const problem = "application/problem+json"
	for say, env := range map[string]environment{
		"connection refused":                                   {"ONCEPAY_URL": "http://127.0.0.1:1", "ONCEPAY_TOKEN": s.Token},
		"503 unavailable: Later. Ask again":                    answer(503, problem, `{"code":"unavailable","detail":"Later.","retry":"same-key"}`),
		"status 502 that is not the service's":                 answer(502, "text/html", "bad gateway"),
		"status 404 that is not the service's: is ONCEPAY_URL": answer(404, "text/html", "not here"),
		"status 200 that is not the service's":                 answer(200, "text/html", "<html>Welcome"),
	} {
		for _, args := range [][]string{{"get", s.Accounts[0].ID.String()}, {"key", "order-1", "--json"}} {
			stdout, stderr, code := oncepay(t, env, args...)
			if code != exitFailed || stdout != "" || !strings.Contains(stderr, say) || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, s.Token) {
				t.Errorf("%s: exit %d, %s%s", args[0], code, stdout, stderr)
			}
		}
	}
	stranger := environment{"ONCEPAY_URL": s.api.URL, "ONCEPAY_TOKEN": s.Token}
	must(t, s.owner, "credentials", "revoke", s.CredentialID)
	if _, stderr, code := oncepay(t, stranger, "key", "order-1"); code != exitRefused || !strings.HasPrefix(stderr, "oncepay: 401 unauthorized: ") {
		t.Errorf("a revoked credential: exit %d, %s", code, stderr)
	}
}

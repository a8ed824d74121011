package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/credentials"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/webhooks"
)

// Every route there is, whatever is added to it later, with every kind of caller that must not get
// through.
func TestRoutesRequireAuthentication(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	account := a.caller.funded(t, 1000)
	payment := a.caller.pay(t, account, a.caller.account(t), 1)
	refund := read[payments.Refund](t, a.caller.post(t, "/api/v1/payments/"+payment.ID.String()+"/refunds", `{}`), http.StatusCreated).ID.String()
	endpoint := read[webhooks.Endpoint](t, a.caller.post(t, "/api/v1/webhook-endpoints", `{"url":"https://example.com/hooks","event_types":["payment.completed"]}`), http.StatusCreated).ID.String()
	const key = "walk"
	a.caller.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", key)

	stranger := a.newTenant(t, credentials.ScopeFund)
	revoked := a.newTenant(t)
	a.tx(t, func(ctx context.Context, tx pgx.Tx) error { return credentials.Revoke(ctx, tx, revoked.credential) })
	unauthenticated := caller{api: a}
	token := a.caller.token
	bad := []string{
		"", "Bearer", "Bearer ", "Bearer x", "Basic " + token, token, "Bearer " + token + "x",
		"Bearer " + strings.ToUpper(token), "Bearer " + revoked.token,
	}

	routes := 0
	err := chi.Walk(a.handler.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if route == "/livez" || route == "/readyz" {
			if got := unauthenticated.do(t, method, route, ""); got.status != http.StatusOK {
				t.Errorf("%s %s: %d", method, route, got.status)
			}
			return nil
		}
		routes++
		id := account
		if strings.HasPrefix(route, "/api/v1/payments") {
			id = payment.ID.String()
		} else if strings.HasPrefix(route, "/api/v1/refunds") {
			id = refund
		} else if strings.HasPrefix(route, "/api/v1/webhook-endpoints") {
			id = endpoint
		}
		path := strings.NewReplacer("{id}", id, "{key}", key, "{delivery}", uuid.NewString()).Replace(route)
		if strings.Contains(path, "{") {
			t.Errorf("%s has a parameter that this test does not know", route)
		}
		t.Run(method+" "+route, func(t *testing.T) {
			var first string
			for _, header := range bad {
				got := unauthenticated.do(t, method, path, "{}", "Authorization", header)
				got.is(t, http.StatusUnauthorized, "unauthorized")
				if got.header.Get("WWW-Authenticate") != "Bearer" {
					t.Error("no WWW-Authenticate")
				}
				same := anonymous(got.body)
				if first == "" {
					first = same
				}
				if same != first {
					t.Errorf("%q gets another reason: %s", header, same)
				}
			}
			r, _ := http.NewRequestWithContext(t.Context(), method, a.URL+path, nil)
			r.Header["Authorization"] = []string{"Bearer " + a.caller.token, "Bearer " + a.caller.token}
			send(t, a, r).is(t, http.StatusUnauthorized, "unauthorized")

			if method == http.MethodPost {
				return
			}
			if got := unauthenticated.do(t, http.MethodHead, path, ""); got.status != http.StatusUnauthorized || got.body != "" {
				t.Errorf("HEAD without a credential: %d", got.status)
			}
			if got := a.caller.do(t, http.MethodHead, path, ""); got.status != http.StatusOK || got.body != "" || got.header.Get("Content-Length") == "" {
				t.Errorf("HEAD: %d", got.status)
			}
			own, other := a.caller.get(t, path), stranger.get(t, path)
			if own.status != http.StatusOK || strings.Contains(anonymous(other.body), account) || strings.Contains(anonymous(other.body), payment.ID.String()) || strings.Contains(anonymous(other.body), endpoint) {
				t.Errorf("own: %d, another tenant's: %d %s", own.status, other.status, other.body)
			}
			if strings.Contains(route, "{id}") {
				other.is(t, http.StatusNotFound, "not-found")
				none := stranger.get(t, strings.Replace(route, "{id}", uuid.NewString(), 1))
				odd := stranger.get(t, strings.Replace(route, "{id}", "'--", 1))
				if anonymous(none.body) != anonymous(other.body) || anonymous(odd.body) != anonymous(other.body) {
					t.Errorf("not-found answers differ:\n%s\n%s\n%s", other.body, none.body, odd.body)
				}
			}
		})
		return nil
	})
	if err != nil || routes != 20 {
		t.Errorf("walked %d routes, %v", routes, err)
	}
}

var attempt = regexp.MustCompile(`"(instance|request_id)":"[^"]*"`)

// anonymous takes out of a problem what belongs to the attempt.
func anonymous(body string) string { return attempt.ReplaceAllString(body, "") }

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	account := a.caller.account(t)
	for _, c := range []struct{ method, path, allow string }{
		{"GET", "/", ""}, {"GET", "/api/v1", ""}, {"GET", "/api/v1/", ""}, {"GET", "/api/v1/nothing", ""}, {"GET", "/API/v1/payments", ""},
		{"GET", "/api/v1/payments/", ""}, {"POST", "/api/v1/payments/", ""}, {"GET", "//api/v1/payments", ""}, {"GET", "/api/v1//payments", ""},
		{"GET", "/api/v1/accounts/" + account + "/", ""}, {"GET", "/api/v1/accounts/" + account + "/entries/", ""},
		{"GET", "/livez/../api/v1/payments", ""}, {"GET", "/api/v1/%70ayments", ""}, {"GET", "/api/v1/payments%2f", ""}, {"GET", "/api/v1/payments;x", ""},
		{"GET", "/api/v1/accounts/" + strings.Replace(account, "-", "%2D", 1), ""}, {"GET", "/api/v1/accounts/" + strings.ToUpper("a"+account[1:]), ""},
		{"GET", "/api/v1/idempotency-keys/", ""}, {"BREW", "/nothing", ""}, {"OPTIONS", "/nothing", ""},
		{"DELETE", "/api/v1/payments", "GET, HEAD, POST"}, {"PUT", "/api/v1/payments/" + account, "GET, HEAD"}, {"POST", "/api/v1/payments/" + account, "GET, HEAD"},
		{"PATCH", "/api/v1/accounts", "POST"}, {"GET", "/api/v1/accounts", "POST"}, {"HEAD", "/api/v1/accounts", "POST"}, {"OPTIONS", "/api/v1/payments", "GET, HEAD, POST"},
		{"TRACE", "/api/v1/payments", "GET, HEAD, POST"}, {"BREW", "/api/v1/payments", "GET, HEAD, POST"}, {"POST", "/livez", "GET, HEAD"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			got := a.caller.do(t, c.method, c.path, "", "X-Http-Method-Override", "GET")
			status, code := http.StatusNotFound, "not-found"
			if c.allow != "" {
				status, code = http.StatusMethodNotAllowed, "method-not-allowed"
			}
			if c.method == http.MethodHead {
				if got.status != status {
					t.Errorf("%d", got.status)
				}
			} else {
				got.is(t, status, code)
			}
			if got.header.Get("Allow") != c.allow {
				t.Errorf("Allow: %s", got.header.Get("Allow"))
			}
		})
	}
}

// Requests that net/http's client does not send.
func TestUnusualRequestLines(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	for line, want := range map[string]struct {
		status   int
		instance string
	}{
		"GET http://elsewhere/livez":       {http.StatusOK, ""},
		"GET http://elsewhere":             {http.StatusNotFound, "/"},
		"CONNECT elsewhere:1":              {http.StatusNotFound, "/"},
		"OPTIONS *":                        {http.StatusNotFound, "*"},
		strings.Repeat("A", 12_000) + " /": {http.StatusNotFound, "/"},
	} {
		conn, err := net.Dial("tcp", a.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, line+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		err = errors.Join(err, response.Body.Close(), conn.Close())
		if err != nil || response.StatusCode != want.status {
			t.Fatalf("%.40s: %d %v", line, response.StatusCode, err)
		}
		if want.instance != "" {
			got := answer{response.StatusCode, response.Header, string(body)}
			if p := got.problem(t); p.Instance != want.instance {
				t.Errorf("%.40s: instance %q", line, p.Instance)
			}
		}
	}

	a.Close() // waits until the last one is observed
	for _, o := range a.seen {
		if len(o.Method) > 70 {
			t.Errorf("a method of %d bytes is observed", len(o.Method))
		}
	}
}

// A proxy that goes by the length sends what follows as a part of the body, and gives the answer to
// it to its next client.
func TestNothingFollowsTwoFramings(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	conn, err := net.Dial("tcp", a.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "POST /api/v1/payments HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answers, err := io.ReadAll(conn)
	if n := strings.Count(string(answers), "HTTP/1.1 "); n != 1 || err != nil {
		t.Errorf("%d answers, %v:\n%s", n, err, answers)
	}
}

func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	for id, kept := range map[string]bool{
		"": false, "a.B_9-": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "a\"b": false, "é": false,
		a.caller.token: false,
	} {
		got := a.caller.do(t, "GET", "/livez", "", "X-Request-Id", id)
		if now := got.header.Get("X-Request-Id"); kept != (now == id) || now == "" {
			t.Errorf("%q became %q", id, now)
		}
		if got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Content-Type-Options") != "nosniff" || got.header.Get("Content-Length") == "" || got.header.Get("Server") != "" {
			t.Errorf("%v", got.header)
		}
	}
	unauthenticated := caller{api: a}
	if got := unauthenticated.post(t, "/api/v1/payments", "{}", "Idempotency-Key", `"a,b"`); got.status != 401 || got.header.Get("Idempotency-Key") != "a,b" {
		t.Errorf("the key is not echoed: %+v", got)
	}
	for path, route := range map[string]string{"/nothing": "", "/api/v1/payments": "/api/v1/payments", "/api/v1/payments/x": "/api/v1/payments/{id}"} {
		unauthenticated.do(t, "GET", path, "", "X-Request-Id", "r")
		if o := a.last("r"); o.Route != route || o.Duration <= 0 {
			t.Errorf("%s is observed as %+v", path, o)
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("POST", "/api/v1/payments", strings.NewReader(strings.Repeat(" ", 64<<10+1)))
	r.Header = http.Header{"Authorization": {"Bearer " + a.caller.token}, "Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
	a.handler.ServeHTTP(w, r)
	if w.Code != http.StatusRequestEntityTooLarge || w.Header().Get("Connection") != "close" {
		t.Errorf("too large: %d %v", w.Code, w.Header())
	}
}

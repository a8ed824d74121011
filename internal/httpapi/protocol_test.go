package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncepay/oncepay/internal/groupcommit"
	"github.com/oncepay/oncepay/internal/httpapi"
	"github.com/oncepay/oncepay/internal/idempotency"
	"github.com/oncepay/oncepay/internal/payments"
	"github.com/oncepay/oncepay/internal/testenv"
)

func TestReplayIsTheFirstAnswerByteForByte(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	rich, poor := c.funded(t, 1000), c.account(t)
	yen := read[payments.Account](t, c.post(t, "/api/v1/accounts", `{"currency":"JPY"}`), http.StatusCreated).ID.String()
	var system string
	a.tx(t, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT id::text FROM accounts WHERE kind = 'system' AND tenant_id = $1`, c.tenant).Scan(&system)
	})
	plain := c.newClient(t) // without accounts:fund
	for _, k := range []struct {
		name, path, body string
		who              caller
		status           int
		code, retry      string
	}{
		{"account", "/api/v1/accounts", `{"currency":"USD","name":"till"}`, c, 201, "", ""},
		{"payment", "/api/v1/payments", order(rich, poor, 1), c, 201, "", ""},
		{"insufficient funds", "/api/v1/payments", order(rich, poor, 5000), c, 402, "insufficient-funds", "new-key"},
		{"unknown account", "/api/v1/payments", order(rich, uuid.NewString(), 1), c, 422, "unknown-account", "new-key"},
		{"another tenant's account", "/api/v1/payments", order(rich, a.newTenant(t).account(t), 1), c, 422, "unknown-account", "new-key"},
		{"another currency", "/api/v1/payments", order(rich, yen, 1), c, 422, "currency-mismatch", "never"},
		{"funding without the scope", "/api/v1/payments", order(system, poor, 1), plain, 403, "funding-forbidden", "new-key"},
	} {
		t.Run(k.name, func(t *testing.T) {
			key := uuid.NewString()
			first := k.who.post(t, k.path, k.body, "Idempotency-Key", key, "X-Request-Id", "first-"+key)
			if first.status != k.status {
				t.Fatalf("%d %s", first.status, first.body)
			}
			again := k.who.post(t, k.path, " "+k.body+"\n", "Idempotency-Key", `"`+key+`"`, "X-Request-Id", "again-"+key)
			rotated := k.who.newCredential(t, "accounts:fund").post(t, k.path, k.body, "Idempotency-Key", key)
			for _, replay := range []answer{again, rotated} {
				if replay.status != first.status || replay.body != first.body ||
					replay.header.Get("Content-Type") != first.header.Get("Content-Type") || replay.header.Get("Location") != first.header.Get("Location") {
					t.Errorf("replay differs:\n%v\n%v", first, replay)
				}
				if replay.header.Get("Idempotent-Replayed") != "true" || replay.header.Get("Original-Request-Id") != "first-"+key || replay.header.Get("Idempotency-Key") != key {
					t.Errorf("replay's headers: %v", replay.header)
				}
				if _, err := http.ParseTime(replay.header.Get("Original-Date")); err != nil {
					t.Error(err)
				}
				if replay.header.Get("Idempotency-Key-Expires") != first.header.Get("Idempotency-Key-Expires") {
					t.Error("the expiry moved")
				}
			}
			if first.header.Get("Idempotent-Replayed") != "false" || first.header.Get("Original-Request-Id") != "" || first.header.Get("Idempotency-Key") != key {
				t.Errorf("first answer's headers: %v", first.header)
			}
			expires, err := http.ParseTime(first.header.Get("Idempotency-Key-Expires"))
			if left := time.Until(expires); err != nil || left < 71*time.Hour || left > 73*time.Hour {
				t.Errorf("expires in %v, %v", left, err)
			}
			if o := a.last("first-" + key); o.Outcome != "new" || o.Key != key || o.Route != k.path || o.Status != k.status || o.Identity.ClientID != k.who.client {
				t.Errorf("observed %+v", o)
			}
			if o := a.last("again-" + key); o.Outcome != "replay" {
				t.Errorf("observed %+v", o)
			}
			if k.code != "" {
				p := first.is(t, k.status, k.code)
				if p.Retry != k.retry || (p.PaymentID != "") != (k.status == http.StatusPaymentRequired) {
					t.Errorf("%+v", p)
				}
				if p.PaymentID != "" {
					if declined := read[payments.Payment](t, c.get(t, p.Instance), http.StatusOK); declined.Status != payments.Declined || declined.ID.String() != p.PaymentID {
						t.Errorf("%+v", declined)
					}
				}
				return
			}
			if location := first.header.Get("Location"); k.path == "/api/v1/payments" {
				if got := k.who.get(t, location); got.body != strings.TrimSuffix(first.body, "}")+`,"refunds":[]}` {
					t.Errorf("at %s is\n%s, answered was\n%s", location, got.body, first.body)
				}
			} else if diff := cmp.Diff(read[payments.Account](t, first, 201), read[payments.Account](t, k.who.get(t, location), 200)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestKeyBelongsToOneRequestOfOneClient(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	body := strings.TrimSuffix(order(from, to, 5), "}") + `,"description":"d","metadata":{"k":"v"},"client_reference":"r"}`
	first := c.post(t, "/api/v1/payments", body, "Idempotency-Key", "k")
	id := read[payments.Payment](t, first, http.StatusCreated).ID
	for _, change := range [][2]string{
		{`:5,`, `:6,`}, {`USD`, `EUR`}, {from, uuid.NewString()}, {to, uuid.NewString()},
		{`"d"`, `"D"`}, {`"d"`, `""`}, {`{"k":"v"}`, `{"k":"w"}`}, {`{"k":"v"}`, `{"l":"v"}`}, {`{"k":"v"}`, `{}`}, {`"r"`, `"s"`},
	} {
		got := c.post(t, "/api/v1/payments", strings.Replace(body, change[0], change[1], 1), "Idempotency-Key", "k", "X-Request-Id", "changed")
		if p := got.is(t, http.StatusUnprocessableEntity, "idempotency-key-reused"); p.Retry != "new-key" {
			t.Errorf("retry: %s", p.Retry)
		}
		if got.header.Get("Idempotency-Key") != "k" || got.header.Get("Idempotency-Key-Expires") == "" || got.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%v", got.header)
		}
		if o := a.last("changed"); o.Outcome != "mismatch" {
			t.Errorf("observed %q", o.Outcome)
		}
	}
	c.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", "k").is(t, http.StatusUnprocessableEntity, "idempotency-key-reused")

	for name, other := range map[string]caller{"another client": c.newClient(t), "another tenant": a.newTenant(t)} {
		got := other.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", "k")
		if got.status != http.StatusCreated || got.header.Get("Idempotent-Replayed") != "false" {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if other := read[payments.Payment](t, c.newClient(t).post(t, "/api/v1/payments", body, "Idempotency-Key", "k"), http.StatusCreated); other.ID == id {
		t.Error("another client got the payment of this one")
	}
}

// hold claims a key of c as another attempt would, until the returned function is called: true
// commits an answer.
func (c caller) hold(t *testing.T, key string) (finish func(commit bool)) {
	t.Helper()
	tx, err := c.api.write.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, canonical, _ := httpapi.DecodeAccount(payments.Target{}, []byte(`{"currency":"USD"}`))
	rs := []idempotency.Request{{
		TenantID: c.tenant, ClientID: c.client, Key: key, RequestID: "holder",
		Fingerprint: idempotency.NewFingerprint(c.tenant, http.MethodPost, "/api/v1/accounts", nil, canonical),
	}}
	as, err := idempotency.Claim(t.Context(), tx, rs, idempotency.DefaultRetention)
	if err != nil || as[0].State != idempotency.New {
		t.Fatal(as, err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = tx.Rollback(context.Background())
		}
	})
	return func(commit bool) {
		ended = true
		if !commit {
			_ = tx.Rollback(t.Context())
			return
		}
		as[0].Response = idempotency.Response{Status: 201, ContentType: "application/json", Location: "/api/v1/accounts/held", Body: []byte(`{"held":true}`)}
		if err := idempotency.Store(t.Context(), tx, rs, as); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestConcurrentAttemptsConflictOrWait(t *testing.T) {
	t.Parallel()
	// waiting is told when a request with this id has been found in progress once.
	waiting := make(chan string, 100)
	a := start(t, func(o *httpapi.Options) {
		submit := o.Submit
		o.Submit = func(ctx context.Context, r payments.Request) (idempotency.Answer, error) {
			answer, err := submit(ctx, r)
			if answer.State == idempotency.InProgress {
				waiting <- r.RequestID
			}
			return answer, err
		}
	})
	c := a.caller
	const body = `{"currency":"USD"}`
	// waitFor posts once more if a pause of the machine has outlasted the wait.
	waitFor := func(body, key string) <-chan answer {
		return later(func() (got answer) {
			for range 12 {
				got = c.post(t, "/api/v1/accounts", body, "Idempotency-Key", key, "Prefer", "wait=60")
				if got.status != http.StatusConflict {
					break
				}
			}
			return got
		})
	}

	t.Run("conflict at once, whatever the body", func(t *testing.T) {
		finish := c.hold(t, "at-once")
		defer finish(false)
		for _, body := range []string{body, `{"currency":"EUR"}`} {
			got := c.post(t, "/api/v1/accounts", body, "Idempotency-Key", "at-once", "X-Request-Id", "now")
			if p := got.is(t, http.StatusConflict, "request-in-progress"); p.Retry != "same-key" || got.header.Get("Retry-After") != "1" {
				t.Errorf("%+v, Retry-After %s", p, got.header.Get("Retry-After"))
			}
			if o := a.last("now"); o.Outcome != "in_progress" {
				t.Errorf("observed %q", o.Outcome)
			}
			<-waiting
		}
	})
	t.Run("Prefer: wait gets the answer", func(t *testing.T) {
		finish := c.hold(t, "replay")
		done := waitFor(body, "replay")
		<-waiting
		finish(true)
		got := <-done
		if got.status != 201 || got.body != `{"held":true}` || got.header.Get("Idempotent-Replayed") != "true" ||
			got.header.Get("Original-Request-Id") != "holder" || got.header.Get("Preference-Applied") != "wait=5" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("Prefer: wait takes over after a crash", func(t *testing.T) {
		finish := c.hold(t, "vanished")
		done := waitFor(body, "vanished")
		<-waiting
		finish(false)
		got := <-done
		if got.status != 201 || got.header.Get("Idempotent-Replayed") != "false" || got.header.Get("Preference-Applied") != "wait=5" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("Prefer: wait reports a mismatch", func(t *testing.T) {
		finish := c.hold(t, "other")
		done := waitFor(`{"currency":"EUR"}`, "other")
		<-waiting
		finish(true)
		(<-done).is(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
	})
	t.Run("Prefer: wait times out with a conflict", func(t *testing.T) {
		finish := c.hold(t, "long")
		defer finish(false)
		start := time.Now()
		got := c.post(t, "/api/v1/accounts", body, "Idempotency-Key", "long", "Prefer", "wait=1")
		got.is(t, http.StatusConflict, "request-in-progress")
		if took := time.Since(start); took < time.Second {
			t.Errorf("waited %v only", took)
		}
		<-waiting
	})
}

func TestConcurrentDuplicatesExecuteOnce(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	from, to := c.funded(t, 1000), c.account(t)
	answers := make(chan answer)
	for range 50 {
		go func() { answers <- c.post(t, "/api/v1/payments", order(from, to, 1), "Idempotency-Key", "k") }()
	}
	firsts, bodies := 0, map[string]bool{}
	for range 50 {
		switch got := <-answers; {
		case got.status == http.StatusCreated:
			bodies[got.body] = true
			if got.header.Get("Idempotent-Replayed") == "false" {
				firsts++
			}
		case got.status != http.StatusConflict:
			t.Errorf("%+v", got)
		}
	}
	if firsts != 1 || len(bodies) != 1 {
		t.Errorf("%d first answers, %d different ones", firsts, len(bodies))
	}
	if got := read[payments.Account](t, c.get(t, "/api/v1/accounts/"+to), http.StatusOK); got.BalanceMinor != 1 {
		t.Errorf("%d was paid", got.BalanceMinor)
	}
}

func TestKeyStatus(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	c := a.caller
	status := func(c caller, path string) map[string]any {
		return read[map[string]any](t, c.get(t, "/api/v1/idempotency-keys/"+path), http.StatusOK)
	}
	unknown := map[string]any{"key": "k", "status": "unknown", "response_status": nil, "resource": nil, "first_seen": nil, "expires": nil}
	if diff := cmp.Diff(unknown, status(c, "k")); diff != "" {
		t.Error(diff)
	}
	finish := c.hold(t, "k")
	if got := status(c, "k"); got["status"] != "in_progress" {
		t.Errorf("%v", got)
	}
	finish(true)
	got := status(c, "k")
	if got["status"] != "completed" || got["response_status"] != 201.0 || got["resource"] != "/api/v1/accounts/held" || got["first_seen"] == nil || got["expires"] == nil {
		t.Errorf("%v", got)
	}
	if diff := cmp.Diff(unknown, status(a.newTenant(t), "k")); diff != "" {
		t.Error("another tenant sees it: " + diff)
	}
	if diff := cmp.Diff(unknown, status(c.newClient(t), "k")); diff != "" {
		t.Error("another client sees it: " + diff)
	}
	c.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", `"a/b,%2F?"`)
	if got := status(c, "a%2Fb,%252F%3F"); got["status"] != "completed" || got["key"] != "a/b,%2F?" {
		t.Errorf("%v", got)
	}
	for _, bad := range []string{"a%20b", "%C3%A9", "%00", strings.Repeat("k", 256)} {
		c.get(t, "/api/v1/idempotency-keys/"+bad).is(t, http.StatusBadRequest, "idempotency-key-invalid")
	}
	c.get(t, "/api/v1/idempotency-keys/k?x=1").is(t, http.StatusBadRequest, "invalid-query")
}

func TestOverRateServesReplaysOnly(t *testing.T) {
	t.Parallel()
	a := start(t, func(o *httpapi.Options) { o.RateLimit = 0.001 }) // one, and the next in a quarter of an hour
	c := a.caller
	const body = `{"currency":"USD"}`
	first := c.post(t, "/api/v1/accounts", body, "Idempotency-Key", "k")
	for range 3 {
		if replay := c.post(t, "/api/v1/accounts", body, "Idempotency-Key", "k"); replay.status != 201 || replay.body != first.body {
			t.Errorf("a finished key: %+v", replay)
		}
	}
	c.post(t, "/api/v1/accounts", `{"currency":"EUR"}`, "Idempotency-Key", "k").is(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
	got := c.post(t, "/api/v1/accounts", body)
	if p := got.is(t, http.StatusTooManyRequests, "rate-limited"); p.Retry != "same-key" || got.header.Get("Retry-After") == "" {
		t.Errorf("%+v %v", p, got.header)
	}
	if other := a.newTenant(t).post(t, "/api/v1/accounts", body); other.status != http.StatusCreated {
		t.Errorf("another client: %+v", other)
	}
}

func TestFailuresTellRetryAndHideCause(t *testing.T) {
	t.Parallel()
	var fail error
	a := start(t, func(o *httpapi.Options) {
		o.Submit = func(context.Context, payments.Request) (idempotency.Answer, error) {
			if fail == nil {
				panic("secret")
			}
			return idempotency.Answer{}, fail
		}
		o.Ready = func(context.Context) error { return errors.New("secret") }
	})
	for _, c := range []struct {
		name   string
		err    error
		status int
		code   string
	}{
		{"unknown outcome", errors.Join(idempotency.ErrOutcomeUnknown, errors.New("secret")), 503, "outcome-unknown"},
		{"time, while it commits", errors.Join(groupcommit.ErrUnfinished, context.DeadlineExceeded), 503, "outcome-unknown"},
		{"time, before its turn", errors.Join(groupcommit.ErrNotBegun, context.DeadlineExceeded), 503, "unavailable"},
		{"database gone", &pgconn.PgError{Code: "57P01", Message: "secret"}, 503, "unavailable"},
		{"too many connections", &pgconn.PgError{Code: "53300", Message: "secret"}, 503, "unavailable"},
		{"former primary", &pgconn.PgError{Code: "25006", Message: "secret"}, 503, "unavailable"},
		{"lock", &pgconn.PgError{Code: "55P03", Message: "secret"}, 503, "unavailable"},
		{"idle for too long", &pgconn.PgError{Code: "25P03", Message: "secret"}, 503, "unavailable"},
		{"transaction too long", &pgconn.PgError{Code: "25P04", Message: "secret"}, 503, "unavailable"},
		{"time", context.DeadlineExceeded, 503, "unavailable"},
		{"unknown error", errors.New("secret"), 500, "internal"},
		{"bug in SQL", &pgconn.PgError{Code: "42601", Message: "secret"}, 500, "internal"},
		{"panic", nil, 500, "internal"},
	} {
		fail = c.err
		got := a.caller.post(t, "/api/v1/accounts", `{"currency":"USD"}`, "Idempotency-Key", "k", "X-Request-Id", "failed")
		if p := got.is(t, c.status, c.code); p.Retry != "same-key" || strings.Contains(got.body, "secret") {
			t.Errorf("%s: %s", c.name, got.body)
		}
		if (got.header.Get("Retry-After") != "") != (c.status == 503) || got.header.Get("Idempotency-Key") != "k" {
			t.Errorf("%s: %v", c.name, got.header)
		}
		testenv.Eventually(t, 20*time.Second, func() error { // observed after the answer was written
			if o := a.last("failed"); o.Err == nil || o.Status != c.status {
				return errors.New("not observed")
			}
			return nil
		})
	}
	if got := a.caller.get(t, "/readyz"); strings.Contains(got.body, "secret") {
		t.Error(got.body)
	} else {
		got.is(t, 503, "unavailable")
	}
	if got := a.caller.get(t, "/livez"); got.status != 200 {
		t.Errorf("%+v", got)
	}
}

// A client that closes its sending half has sent everything and waits for the answer.
func TestRequestRunsAfterClientHalfClose(t *testing.T) {
	t.Parallel()
	a := start(t, nil)
	conn, err := net.Dial("tcp", a.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"currency":"USD"}`
	_, err = fmt.Fprintf(conn, "POST /api/v1/accounts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		a.caller.token, len(body), body)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		t.Errorf("status %d", response.StatusCode)
	}
}
